"""One turn on its way through the router."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from contraflow.core.instructions import Instructions
from contraflow.core.transfer_params import OURS, Params
from contraflow.router.agents import Claim
from contraflow.router.legs import LegRequest
from contraflow.router.report import Retry, TurnReport
from contraflow.router.sessions import Identity
from contraflow.router.turn_body import Traits

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Turn:
    """Everything that both legs and the report need. ``started`` is on the router's clock."""

    identity: Identity
    traits: Traits
    leg: LegRequest
    report: TurnReport
    started: float
    min_pull_tokens: int

    @property
    def retained_under(self) -> str:
        """Session key of the handle that decode shall keep; empty for none. What may not claim
        a handle leaves none either: that of the turn before stays."""
        return self.identity.session_key if self.traits.claimable else ""

    def retains(self, params: Params | None) -> bool:
        """True if a decode leg with ``params`` leaves a handle."""
        return params is not None and bool(self.retained_under)

    def may_retry(self, retry: Retry, why: object) -> bool:
        """False if it has been done before; else it is noted, and done by the caller."""
        if retry in self.report.retries:
            return False
        self.report.retries.append(retry)
        log.warning("leg_retried", turn_id=self.report.turn_id, retry=retry, why=str(why))
        return True

    def instruct(
        self,
        params: Params,
        decision: str,
        claim: Claim | None = None,
        min_pull_tokens: int | None = None,
    ) -> Params:
        """``params`` with what the connectors shall know of this turn."""
        instructions = Instructions(
            tenant=self.identity.tenant,
            session_key=self.retained_under,
            turn_id=self.report.turn_id,
            claim_id=claim.claim_id if claim else "",
            decision=decision,
            message_digest=self.identity.message_digest,
            min_pull_tokens=min_pull_tokens or self.min_pull_tokens,
            proof=claim.proof if claim else None,
        )
        return {**params, OURS: instructions.to_json()}
