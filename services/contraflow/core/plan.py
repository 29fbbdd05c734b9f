"""Planning a turn: which engines, and whether to pull. A pure function of its arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import blake2b

from contraflow.core.errors import NoEligibleEngine
from contraflow.core.fleet import Engine, FleetView, Role

_NOT_REGISTERED = "not registered"


class Decision(StrEnum):
    """What the prefill leg does about remote KV; with ``DECODE_ONLY`` there is none."""

    PULL = "PULL"
    RECOMPUTE = "RECOMPUTE"
    DECODE_ONLY = "DECODE_ONLY"


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
    PREFILL_UNREACHABLE = "PREFILL_UNREACHABLE"
    NO_PREFILL_ENGINE = "NO_PREFILL_ENGINE"
    SHORT_SUFFIX = "SHORT_SUFFIX"


@dataclass(frozen=True, slots=True)
class Continuation:
    """What a turn goes on from that names no session and is known by its messages.

    ``key`` is the session key of the turn before, empty if nobody is known to hold anything
    of it. Where this router has seen the reply that the client sends back, ``turn_id`` is the
    turn that made it and ``engine_id`` the engine.
    """

    key: str = ""
    turn_id: str = ""
    engine_id: str = ""


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """What planning needs of a turn.

    ``session_key`` is what the turn's own handle will be retained under; a turn that names its
    session looks for the last handle under the same key, any other under that of ``continues``.
    ``skips_prefix_cache``: the engine would drop external tokens too (prompt_logprobs,
    echo, n > 1), so a handle would be consumed unread. ``added``: message digests that earlier
    turns of this history may have had, and of how many tokens at most what came after them is.
    """

    model: str
    session_key: str = ""
    skips_prefix_cache: bool = False
    continues: Continuation | None = None
    added: tuple[tuple[str, float], ...] = ()

    @property
    def lookup_key(self) -> str:
        """The session key of the handle to pull; empty if there is none to look for."""
        return self.session_key if self.continues is None else self.continues.key


@dataclass(frozen=True, slots=True)
class Policy:
    """The operator's settings. A handle of fewer tokens is not pulled; infinite: none is. Decode
    alone gets a turn that adds fewer tokens to what it holds; zero: no such turn."""

    recompute_threshold_tokens: float = 64
    decode_only_below_tokens: int = 0


Least = Callable[[Engine, Engine, int], float]
"""From how many tokens on a handle is pulled: by prefill engine, holder and the handle's tokens."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine considered. Scores compare within one plan only; higher is better, and of equal
    ones the first."""

    engine: Engine
    score: float
    rejected: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """Engines of both legs, the decision and everything that was considered.

    ``prefill`` is None for DECODE_ONLY, and for nothing else. ``home`` is the engine to acquire
    from, set for PULL only; ``handle_id`` is a hint. ``holder`` has the session's handle as far as
    is known, whether it is pulled or not.
    """

    decode: Engine
    prefill: Engine | None
    decision: Decision
    reason: PlanReason
    home: Engine | None = None
    holder: Engine | None = None
    handle_id: str = ""
    handle_tokens: int = 0
    candidates: tuple[Candidate, ...] = field(default=(), repr=False)

    @property
    def hands_over(self) -> bool:
        """False if there is no prefill engine, or one of another class, of which decode can read
        nothing."""
        return self.prefill is not None and _of_one_class(self.prefill, self.decode)


def plan_turn(
    view: FleetView,
    request: TurnRequest,
    load: Mapping[str, int],
    policy: Policy,
    least: Least | None = None,
) -> Plan:
    """Plan one turn. ``load`` is this router's turns in flight by engine id. ``least`` may ask
    for more tokens of a handle than the policy does.

    Raises NoEligibleEngine if no decode engine can serve the model.
    """
    home = _home(view, request)
    twin = _first(view, _holders(view, request.session_key)) if request.continues else None
    decodes = _candidates(view, request, load, Role.DECODE, prefer=home, lean=twin)
    decode = _best(decodes)
    if decode is None:
        raise NoEligibleEngine("no decode engine serves the model", model=request.model)
    prefills = _of_class(_candidates(view, request, load, Role.PREFILL), decode)
    prefill = _best(prefills)
    decision, reason, tokens, handle_id = _decide(
        view, request, prefill, decode, home, policy, least
    )
    pull = decision is Decision.PULL
    return Plan(
        decode=decode,
        prefill=prefill if decision is not Decision.DECODE_ONLY else None,
        decision=decision,
        reason=reason,
        home=home if pull else None,
        holder=home if reason is not PlanReason.NO_HANDLE else None,
        handle_id=handle_id if pull else "",
        handle_tokens=tokens,
        candidates=(*decodes, *prefills),
    )


def without(plan: Plan, engine: Engine) -> Plan | None:
    """The plan with the next best engine in the place of one of its two, whose endpoint refuses
    connections, to all of its ranks; None if there is no other.

    One that is not registered is better than none: that may be its agent's fault."""
    others = [
        one
        for one in plan.candidates
        if one.engine.role is engine.role
        and one.rejected in ("", _NOT_REGISTERED)
        and one.engine.endpoint != engine.endpoint
    ]
    if not others:
        return None
    peer = plan.decode if engine.role is Role.PREFILL else plan.prefill or plan.decode
    best = max(
        others,
        key=lambda one: (not one.rejected, _of_one_class(one.engine, peer), one.score),
    ).engine
    if engine.role is Role.DECODE:
        return replace(plan, decode=best)
    if plan.home is None or _can_pull(best, plan.home):
        return replace(plan, prefill=best)
    return replace(
        plan,
        prefill=best,
        decision=Decision.RECOMPUTE,
        reason=PlanReason.INCOMPATIBLE,
        home=None,
        handle_id="",
    )


def _home(view: FleetView, request: TurnRequest) -> Engine | None:
    holders = _holders(view, request.lookup_key)
    if request.continues:
        holders.insert(0, request.continues.engine_id)
    return _first(view, holders)


def _holders(view: FleetView, session_key: str) -> list[str]:
    # Our own affinity is at most one turn ahead of the directory, never behind it for
    # turns that came through here; another router's turn shows in the session record.
    session = view.sessions.get(session_key)
    return [view.homes.get(session_key, ""), session.engine_id if session else ""]


def _first(view: FleetView, engine_ids: list[str]) -> Engine | None:
    return next((view.engines[one] for one in engine_ids if one in view.engines), None)


def _candidates(
    view: FleetView,
    request: TurnRequest,
    load: Mapping[str, int],
    role: Role,
    prefer: Engine | None = None,
    lean: Engine | None = None,
) -> tuple[Candidate, ...]:
    def of(engines: Mapping[str, Engine]) -> list[Candidate]:
        ordered = sorted(
            (engine for engine in engines.values() if engine.role is role),
            key=lambda engine: _rank(request.session_key, engine),
            reverse=True,
        )
        return [
            _candidate(engine, request, _score(engine, load, prefer, lean)) for engine in ordered
        ]

    registered, vanished = of(view.engines), of(view.vanished)
    if any(not candidate.rejected for candidate in registered):
        # Whoever is registered has been heard of lately.
        vanished = [
            one if one.rejected else replace(one, rejected=_NOT_REGISTERED) for one in vanished
        ]
    return (*registered, *vanished)


def _of_class(prefills: tuple[Candidate, ...], decode: Engine) -> tuple[Candidate, ...]:
    # One of another class can hand nothing over: it serves only where nobody else can.
    if not any(_of_one_class(one.engine, decode) for one in prefills if not one.rejected):
        return prefills
    return tuple(
        one
        if one.rejected or _of_one_class(one.engine, decode)
        else replace(one, rejected="of another compatibility class than the decode engine")
        for one in prefills
    )


def _candidate(engine: Engine, request: TurnRequest, score: float) -> Candidate:
    rejected = ""
    if request.model not in engine.served_models:
        rejected = "serves another model"
    elif engine.draining:
        rejected = "draining"
    return Candidate(engine, score, rejected)


def _score(
    engine: Engine, load: Mapping[str, int], prefer: Engine | None, lean: Engine | None
) -> float:
    if prefer is not None and engine.engine_id == prefer.engine_id:
        return 1.0
    # Where another conversation has left the same messages its owner can see the tie. No more
    # than a lean: a popular opening must not gather all conversations on one engine.
    leans = lean is not None and engine.engine_id == lean.engine_id
    return 0.5 * leans - load.get(engine.engine_id, 0)


def _best(candidates: tuple[Candidate, ...]) -> Engine | None:
    eligible = [candidate for candidate in candidates if not candidate.rejected]
    return max(eligible, key=lambda one: one.score).engine if eligible else None


def _rank(session_key: str, engine: Engine) -> bytes:
    # Rendezvous hashing: on an idle fleet too, sessions are spread and each keeps its engines.
    return blake2b(f"{session_key}/{engine.engine_id}".encode(), digest_size=8).digest()


def _decide(
    view: FleetView,
    request: TurnRequest,
    prefill: Engine | None,
    decode: Engine,
    home: Engine | None,
    policy: Policy,
    least: Least | None,
) -> tuple[Decision, PlanReason, int, str]:
    def recompute(reason: PlanReason, tokens: int = 0) -> tuple[Decision, PlanReason, int, str]:
        return Decision.RECOMPUTE, reason, tokens, ""

    if prefill is None:
        return Decision.DECODE_ONLY, PlanReason.NO_PREFILL_ENGINE, 0, ""
    if request.skips_prefix_cache:
        return recompute(PlanReason.UNSUPPORTED_REQUEST)
    if not request.session_key:
        return recompute(PlanReason.NO_SESSION)
    if home is None:
        return recompute(PlanReason.NO_HANDLE)
    key = request.lookup_key
    session = view.sessions.get(key)
    if request.continues and not request.continues.turn_id and _is_shared(view, key):
        return recompute(PlanReason.AMBIGUOUS_SESSION)
    named = request.continues is not None and bool(request.continues.turn_id)
    current = session if session and session.engine_id == home.engine_id else None
    known_locally = named or key in view.homes
    if current is None and not known_locally:
        return recompute(PlanReason.NO_HANDLE)
    if current and named and current.branches > 1:
        current = None  # the record tells of the newest branch only
    tokens = current.num_tokens if current else 0
    if current and home.engine_id == decode.engine_id:
        most = dict(request.added).get(current.message_digest, math.inf)
        if most < policy.decode_only_below_tokens:
            return Decision.DECODE_ONLY, PlanReason.SHORT_SUFFIX, 0, ""
    if not (_can_pull(prefill, home) and _of_one_class(prefill, decode)):
        return recompute(PlanReason.INCOMPATIBLE, tokens)
    threshold = policy.recompute_threshold_tokens
    if current and least is not None:
        threshold = max(threshold, least(prefill, home, tokens))
    if tokens < threshold and (current or math.isinf(threshold)):
        return recompute(PlanReason.BELOW_THRESHOLD, tokens)
    handle_id = current.handle_id if current else ""
    return Decision.PULL, PlanReason.HANDLE_AVAILABLE, tokens, handle_id


def _is_shared(view: FleetView, key: str) -> bool:
    """True if more than one conversation is known to have left these messages."""
    session = view.sessions.get(key)
    if session is None:
        return False
    local = view.homes.get(key, session.engine_id)
    return session.branches > 1 or (local != session.engine_id and local in view.engines)


def _can_pull(prefill: Engine, home: Engine) -> bool:
    return (
        prefill.engine_id != home.engine_id
        and prefill.bidirectional
        and home.bidirectional
        and _of_one_class(prefill, home)
    )


def _of_one_class(one: Engine, other: Engine) -> bool:
    return one.compatibility_class == other.compatibility_class
