"""Planning a turn: which engines, and whether to pull. A pure function of its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from contraflow.core.errors import NoEligibleEngine
from contraflow.core.fleet import Engine, FleetView, Role


class Decision(StrEnum):
    """What the prefill leg does about remote KV."""

    PULL = "PULL"
    RECOMPUTE = "RECOMPUTE"


class PlanReason(StrEnum):
    """Why. Values equal the enum names of ``contraflow.v1.DecisionReason``."""

    HANDLE_AVAILABLE = "HANDLE_AVAILABLE"
    NO_SESSION = "NO_SESSION"
    NO_HANDLE = "NO_HANDLE"
    BELOW_THRESHOLD = "BELOW_THRESHOLD"
    INCOMPATIBLE = "INCOMPATIBLE"
    UNSUPPORTED_REQUEST = "UNSUPPORTED_REQUEST"
    ACQUIRE_DENIED = "ACQUIRE_DENIED"
    ACQUIRE_TIMEOUT = "ACQUIRE_TIMEOUT"
    LEASE_TOO_SHORT = "LEASE_TOO_SHORT"
    AMBIGUOUS_SESSION = "AMBIGUOUS_SESSION"


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """What planning needs of a turn.

    ``skips_prefix_cache``: the engine would drop external tokens too (prompt_logprobs,
    echo, n > 1), so a handle would be consumed unread.
    """

    model: str
    session_key: str = ""
    skips_prefix_cache: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """The operator's settings. A handle of fewer tokens is not pulled."""

    recompute_threshold_tokens: int = 64


@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine considered. Scores compare within one plan only; higher is better."""

    engine: Engine
    score: float
    rejected: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """Engines of both legs, the decision and everything that was considered.

    ``home`` is the engine to acquire from, set for PULL only; ``handle_id`` is a hint.
    """

    decode: Engine
    prefill: Engine
    decision: Decision
    reason: PlanReason
    home: Engine | None = None
    handle_id: str = ""
    handle_tokens: int = 0
    candidates: tuple[Candidate, ...] = field(default=(), repr=False)


def plan_turn(
    view: FleetView,
    request: TurnRequest,
    load: Mapping[str, int],
    policy: Policy,
    now: float,
) -> Plan:
    """Plan one turn. ``load`` is this router's turns in flight by engine id.

    Raises NoEligibleEngine if no decode or no prefill engine can serve the model.
    """
    home = _home(view, request)
    decodes = _candidates(view, request, load, Role.DECODE, prefer=home)
    decode = _best(decodes, Role.DECODE, request.model)
    prefills = _candidates(view, request, load, Role.PREFILL, prefer=None)
    prefill = _best(prefills, Role.PREFILL, request.model)
    decision, reason, tokens, handle_id = _decide(view, request, prefill, home, policy, now)
    pull = decision is Decision.PULL
    return Plan(
        decode=decode,
        prefill=prefill,
        decision=decision,
        reason=reason,
        home=home if pull else None,
        handle_id=handle_id if pull else "",
        handle_tokens=tokens,
        candidates=(*decodes, *prefills),
    )


def _home(view: FleetView, request: TurnRequest) -> Engine | None:
    if not request.session_key:
        return None
    # Our own affinity is at most one turn ahead of the directory, never behind it for
    # turns that came through here; another router's turn shows in the session record.
    local = view.homes.get(request.session_key)
    session = view.sessions.get(request.session_key)
    for engine_id in (local, session.engine_id if session else None):
        if engine_id and (engine := view.engines.get(engine_id)):
            return engine
    return None


def _candidates(
    view: FleetView,
    request: TurnRequest,
    load: Mapping[str, int],
    role: Role,
    prefer: Engine | None,
) -> tuple[Candidate, ...]:
    def of(engines: Mapping[str, Engine]) -> list[Candidate]:
        ordered = sorted(engines.values(), key=lambda engine: engine.engine_id)
        return [_candidate(e, request, load, prefer) for e in ordered if e.role is role]

    registered, vanished = of(view.engines), of(view.vanished)
    if any(not candidate.rejected for candidate in registered):
        # Whoever is registered has been heard of lately.
        vanished = [replace(candidate, rejected="not registered") for candidate in vanished]
    return (*registered, *vanished)


def _candidate(
    engine: Engine, request: TurnRequest, load: Mapping[str, int], prefer: Engine | None
) -> Candidate:
    rejected = ""
    if request.model not in engine.served_models:
        rejected = "serves another model"
    elif engine.draining:
        rejected = "draining"
    at_home = prefer is not None and engine.engine_id == prefer.engine_id
    score = 1.0 if at_home else -float(load.get(engine.engine_id, 0))
    return Candidate(engine, score, rejected)


def _best(candidates: tuple[Candidate, ...], role: Role, model: str) -> Engine:
    eligible = [candidate for candidate in candidates if not candidate.rejected]
    if not eligible:
        raise NoEligibleEngine(f"no {role.value} engine serves the model", model=model)
    return max(eligible, key=lambda candidate: candidate.score).engine


def _decide(
    view: FleetView,
    request: TurnRequest,
    prefill: Engine,
    home: Engine | None,
    policy: Policy,
    now: float,
) -> tuple[Decision, PlanReason, int, str]:
    def recompute(reason: PlanReason, tokens: int = 0) -> tuple[Decision, PlanReason, int, str]:
        return Decision.RECOMPUTE, reason, tokens, ""

    if request.skips_prefix_cache:
        return recompute(PlanReason.UNSUPPORTED_REQUEST)
    if not request.session_key:
        return recompute(PlanReason.NO_SESSION)
    session = view.sessions.get(request.session_key)
    current = session if session and home and session.engine_id == home.engine_id else None
    expired = current is not None and current.expires_at <= now
    known_locally = home is not None and request.session_key in view.homes
    if home is None or ((current is None or expired) and not known_locally):
        return recompute(PlanReason.NO_HANDLE)
    tokens = current.num_tokens if current else 0
    if not _can_pull(prefill, home):
        return recompute(PlanReason.INCOMPATIBLE, tokens)
    if current and tokens < policy.recompute_threshold_tokens:
        return recompute(PlanReason.BELOW_THRESHOLD, tokens)
    handle_id = current.handle_id if current else ""
    return Decision.PULL, PlanReason.HANDLE_AVAILABLE, tokens, handle_id


def _can_pull(prefill: Engine, home: Engine) -> bool:
    return (
        prefill.engine_id != home.engine_id
        and prefill.bidirectional
        and home.bidirectional
        and prefill.compatibility_class == home.compatibility_class
    )
