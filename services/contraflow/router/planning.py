"""Plans of this router: the core's plan over the present view, affinities and load."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from contraflow.core.errors import NoEligibleEngine
from contraflow.core.fleet import Engine, Role
from contraflow.core.plan import Plan, Policy, TurnRequest, plan_turn
from contraflow.router.affinity import Homes, Load, Produced, Replies
from contraflow.router.costs import NO_DRAW, Costs
from contraflow.runtime.fleet_replica import FleetReplica
from contraflow.web import ApiError

_RETRY_AFTER = ((b"retry-after", b"1"),)
FIRST_VIEW_SECONDS = 3.0
"""Longest wait of a turn for the first view of a router."""


class Planner:
    """Plans turns as of now."""

    def __init__(
        self,
        replica: FleetReplica,
        homes: Homes,
        replies: Replies,
        load: Load,
        policy: Policy,
        costs: Costs | None = None,
    ) -> None:
        self.policy = policy
        self._replica = replica
        self._homes = homes
        self._replies = replies
        self._load = load
        self._costs = costs

    async def heard(self) -> None:
        """Returns at once, but in a router that has just started and knows nothing yet: there
        with its first view, or when that is long in coming."""
        if not self._replica.synced.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_VIEW_SECONDS):
                    await self._replica.synced.wait()

    def plan(self, request: TurnRequest, draw: float = NO_DRAW) -> Plan:
        """Changes nothing. With another ``draw`` the plan may explore. Raises NoEligibleEngine."""
        return plan_turn(
            self._replica.view(self._homes.by_key),
            request,
            self._load.by_engine,
            self.policy,
            self._costs.least(request.model, draw) if self._costs else None,
        )

    def plan_for_client(self, request: TurnRequest, draw: float = NO_DRAW) -> Plan:
        """As ``plan``. Raises ApiError: 404 for a model that no engine serves, else 503."""
        try:
            return self.plan(request, draw)
        except NoEligibleEngine as error:
            known = served_models(self._replica.known())
            if known and request.model not in known:
                message = f"The model `{request.model}` does not exist."
                raise ApiError(404, message, param="model") from error
            raise ApiError(503, f"{error}; try again later.", headers=_RETRY_AFTER) from error

    def agent_address(self, engine_id: str) -> str:
        """The agent of a registered engine; empty if there is none."""
        engine = self._replica.engines.get(engine_id)
        return engine.agent_address if engine else ""

    def is_live(self, session_key: str) -> bool:
        """True if a registered engine may hold a handle under the key."""
        engines = self._replica.engines
        if self._homes.by_key.get(session_key) in engines:
            return True
        session = self._replica.sessions.get(session_key)
        return session is not None and session.engine_id in engines

    def produced(self, session_key: str, reply_digest: str) -> Produced | None:
        """The turn under the key that made the reply, if it came through this router."""
        return self._replies.find(session_key, reply_digest)

    def default_model(self) -> str:
        """For a request that names none: vLLM takes what it serves first, and so do we."""
        engines = self._replica.known()
        return next((engine.served_models[0] for engine in engines if engine.served_models), "")


def served_models(engines: Iterable[Engine]) -> dict[str, str]:
    """Served names to the weights behind them, sorted."""
    names = {name: engine.model for engine in engines for name in engine.served_models}
    return dict(sorted(names.items()))


def missing_roles(engines: Iterable[Engine]) -> list[str]:
    """Roles that no engine in the view fills at present."""
    present = {engine.role for engine in engines if not engine.draining}
    return [role.value for role in Role if role not in present]
