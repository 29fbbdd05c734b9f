"""Defects put into the running code on purpose: a checker that misses one checks nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from contraflow.agent.publisher import Changes, Publication
from contraflow.agent.registration import EngineRegistration
from contraflow.core.chain import Chain
from contraflow.core.errors import ContraflowError, NoEligibleEngine
from contraflow.core.handle import ClaimRequest, Handle, HandleTable, State
from contraflow.core.instructions import Instructions
from contraflow.router.agents import Agents
from contraflow.router.decode import Decode
from contraflow.router.planning import Planner
from contraflow.router.prefill import Prefill
from contraflow.router.report import Retry
from contraflow.router.turn_context import Turn
from contraflow.runtime.fleet_replica import FleetReplica
from contraflow.sim.engine import SimEngine
from contraflow.sim.fabric import FabricError, Owner, _MemoryConnection
from contraflow.sim.puller import Puller
from contraflow.sim.scheduler import Scheduler
from contraflow.sim.transfer import Transfer
from contraflow.store.memory import MemoryStore
from contraflow.store.port import NO_LEASE
from contraflow.verify.world import World
from contraflow.web import ApiError, take_transfer_params
from contraflow.web import body as web_body
from contraflow_connector.holds import Hold
from contraflow_connector.reads import Outcome, Verdict

_FOR_EVER = 1e12


@dataclass(frozen=True, slots=True)
class Plant:
    """``breaks``: the invariants whose checks may catch it."""

    name: str
    breaks: frozenset[str]
    patch: Callable[[], AbstractContextManager[Any]]


def _plant(name: str, breaks: str, target: Any, attribute: str, new: Any) -> Plant:
    return Plant(
        name, frozenset(breaks.split()), lambda: patch.object(target, attribute, new)
    )  # fmt: skip


def _named(name: str, breaks: str, target: str, new: Any) -> Plant:
    return Plant(name, frozenset(breaks.split()), lambda: patch(target, new))


# Never wrong tokens.


def _proves_anything(self: Chain, proof: Any, tokens: Any) -> int:
    return min(int(proof.num_tokens), len(tokens))


def _admits_anything(tip: Any, chain: Chain, prompt: Any, wanted: int) -> Verdict:
    return Verdict(wanted, Outcome.PULLED, wanted)


# Never read after free; at most one claim and one read.

_acquire = HandleTable.acquire
_newest = HandleTable._newest
_release = HandleTable.release


def _outlives_its_lease(self: HandleTable, request: ClaimRequest, now: float) -> Handle:
    for request_id, handle in self._live.items():
        if handle.session_key == request.session_key:
            self._live[request_id] = replace(handle, deadline=_FOR_EVER)
    return _acquire(self, replace(request, start_by=600.0), now)


def _claims_twice(self: HandleTable, request: ClaimRequest, now: float) -> Handle:
    for request_id, handle in self._live.items():
        if handle.session_key == request.session_key and handle.state is State.CLAIMED:
            self._live[request_id] = replace(handle, state=State.RETAINED, claim=None)
    return _acquire(self, request, now)


def _frees_claimed(self: HandleTable, handle_ids: Any) -> list[Handle]:
    wanted = set(handle_ids)
    for request_id, handle in self._live.items():
        if handle.handle_id in wanted:
            self._live[request_id] = replace(handle, state=State.RETAINED)
    return _release(self, wanted)


_pull = Prefill._pull


async def _gives_back_what_was_read(self: Prefill, turn: Any, engine: Any, claim: Any) -> Any:
    try:
        return await _pull(self, turn, engine, claim)
    finally:
        claim.unread = True


# Never across tenants.


def _asks_no_tenant(self: HandleTable, request: ClaimRequest) -> Handle:
    found = self._of_session(request.session_key)
    return _newest(self, replace(request, tenant=found[-1].tenant) if found else request)


def _repeats_for_anybody(handle: Handle, request: ClaimRequest, now: float) -> Handle:
    return handle


# The directory is a hint, and a turn does not fail because of the control plane.


def _fails_when_stale(self: FleetReplica, homes: Any) -> Any:
    if self.age() > 12.0:
        raise ApiError(503, "the directory is not heard")
    return _view(self, homes)


_view = FleetReplica.view
_begin = FleetReplica.begin


def _forgets_at_each_watch(self: FleetReplica) -> None:
    self.engines.clear()
    _begin(self)


_ask_owner = Agents.acquire


async def _fails_with_its_agent(self: Agents, wanted: Any) -> Any:
    try:
        return await _ask_owner(self, wanted)
    except ContraflowError as error:
        raise ApiError(503, "the agent has refused") from error


def _has_seen_nobody(self: FleetReplica) -> dict[str, Any]:
    return {}


# Nothing leaks.

_put = MemoryStore.put
_changes = Publication.changes


def _forgets_expired_blocks(self: Transfer) -> list[str]:
    now = self._retained.clock()
    held = self._reqs_need_send
    for request_id in [one for one, until in held.items() if until <= now]:
        del held[request_id]
    return []


async def _binds_to_no_lease(self: MemoryStore, items: Any, lease_id: int = NO_LEASE) -> int:
    return await _put(self, items, NO_LEASE)


def _withdraws_nothing(self: Publication, *arguments: Any) -> Changes:
    return replace(_changes(self, *arguments), withdraw=[])


# Incarnations fence.


def _same_id_again(self: World) -> str:
    return "0" * 32


def _whoever_is_there(self: _MemoryConnection) -> Owner:
    owner = self._fabric.owners.get(self._address)
    if owner is None:
        raise FabricError("nobody answers there")
    return owner


@contextmanager
def _reads_from_anybody() -> Iterator[None]:
    with (
        patch.object(Puller, "_fault", lambda self, pull, connection: ""),
        patch.object(_MemoryConnection, "_reached", _whoever_is_there),
    ):
        yield


# The client's own parameters never reach an engine.

_finish_body = web_body._finish


def _lets_them_pass(body: Any, params: Any, overrides: Any) -> bytes:
    own = body.get("kv_transfer_params")
    if params is None and own is not None:
        overrides = {**(overrides or {}), "kv_transfer_params": own}
    return _finish_body(body, params, overrides)


@contextmanager
def _nothing_is_stripped() -> Iterator[None]:
    with (
        patch.object(web_body, "CLIENT_NEVER_SENDS", ()),
        patch.object(web_body, "_finish", _lets_them_pass),
    ):
        yield


# Nothing hangs, and reuse returns.

_land = Scheduler._land


def _forgets_failed_loads(self: Scheduler) -> None:
    self.landed = [landing for landing in self.landed if landing.ok]
    _land(self)


def _never_registers_anew(self: EngineRegistration, error: ContraflowError) -> None:
    return None


async def _keeps_no_lease(self: SimEngine) -> None:
    return None


@contextmanager
def _decode_reads_without_a_lease() -> Iterator[None]:
    with (
        patch.object(SimEngine, "_beat", _keeps_no_lease),
        patch.object(Hold, "after", lambda hold, heartbeats, error=0.0: _FOR_EVER),
    ):
        yield


# The engine obeys the plan.

_read_instructions = Instructions.from_json


def _wants_everything(value: object) -> Instructions:
    return replace(_read_instructions(value), pull_blocks=None)


# What has failed is sent again as the table of failures says, and nothing twice.

_again = Decode._again


def _never_sends_again(self: Turn, retry: Retry, why: object) -> bool:
    return False


def _keeps_the_blocks(
    self: Decode, turn: Any, plan: Any, params: Any, error: Any
) -> tuple[Any, Any]:
    return _again(self, turn, plan, params, error)[0], params


async def _goes_without_prefill_at_no_time(self: Prefill, turn: Any, plan: Any, claim: Any) -> Any:
    return (await self._pull(turn, plan.prefill, claim) if claim else None) or (
        await self._compute(turn, plan.prefill)
    )


_plan = Planner.plan


def _plans_no_turn_without_prefill(self: Planner, *arguments: Any) -> Any:
    plan = _plan(self, *arguments)
    if plan.prefill is None:
        raise NoEligibleEngine("no prefill engine serves the model")
    return plan


PLANTS = (
    _plant("a proof proves anything", "NEVER_WRONG", Chain, "proven", _proves_anything),
    _named("decode admits any tip", "NEVER_WRONG",
           "contraflow_connector.decisions.judge_forward", _admits_anything),
    _plant("claims outlive the lease", "NO_READ_AFTER_FREE NEVER_WRONG",
           HandleTable, "acquire", _outlives_its_lease),
    _named("late reads count", "NO_READ_AFTER_FREE NEVER_WRONG",
           "contraflow.sim.puller.ends_late", lambda now, hold_until: False),
    Plant("decode reads without a lease", frozenset({"NO_READ_AFTER_FREE", "NEVER_WRONG"}),
          _decode_reads_without_a_lease),
    _plant("a release frees claimed handles", "NO_READ_AFTER_FREE NEVER_WRONG LIFE_OF_A_HANDLE",
           HandleTable, "release", _frees_claimed),
    _plant("a claimed handle is claimed again", "AT_MOST_ONE_READ LIFE_OF_A_HANDLE",
           HandleTable, "acquire", _claims_twice),
    _plant("a router gives back what was read", "AT_MOST_ONE_READ LIFE_OF_A_HANDLE",
           Prefill, "_pull", _gives_back_what_was_read),
    _plant("the owner asks for no tenant", "NO_OTHER_TENANT",
           HandleTable, "_newest", _asks_no_tenant),
    _plant("a claim is repeated for anybody", "NO_OTHER_TENANT",
           HandleTable, "_repeated", staticmethod(_repeats_for_anybody)),
    _plant("turns fail when the view is old", "NEVER_FAILS REUSE_RETURNS",
           FleetReplica, "view", _fails_when_stale),
    _plant("a lost watch empties the view", "NEVER_FAILS REUSE_RETURNS",
           FleetReplica, "begin", _forgets_at_each_watch),
    _plant("a denial fails the turn", "NEVER_FAILS", Agents, "acquire", _fails_with_its_agent),
    _plant("engines go with their agent", "NEVER_FAILS",
           FleetReplica, "vanished", _has_seen_nobody),
    _plant("expired blocks are forgotten", "NOTHING_LEAKS",
           Transfer, "_expired", _forgets_expired_blocks),
    _plant("records are never withdrawn", "NOTHING_LEAKS",
           Publication, "changes", _withdraws_nothing),
    _plant("records outlive their engine", "NOTHING_LEAKS",
           MemoryStore, "put", _binds_to_no_lease),
    _plant("an engine comes back under its id",
           "NEVER_WRONG NO_READ_AFTER_FREE NO_OTHER_TENANT AT_MOST_ONE_READ LIFE_OF_A_HANDLE "
           "NOTHING_LEAKS REUSE_RETURNS", World, "new_id", _same_id_again),
    Plant("readers go on with whoever listens now", frozenset({
        "NEVER_WRONG", "NO_READ_AFTER_FREE", "NO_OTHER_TENANT", "NEVER_FAILS",
    }), _reads_from_anybody),
    Plant("the client's parameters pass", frozenset({"CLIENT_PARAMS"}), _nothing_is_stripped),
    _named("parameters are shown to the client", "CLIENT_PARAMS",
           "contraflow.router.relay.take_transfer_params",
           lambda data: (data, take_transfer_params(data)[1])),
    _plant("a failed load is forgotten", "NEVER_HANGS NOTHING_LEAKS",
           Scheduler, "_land", _forgets_failed_loads),
    _plant("prefill pulls what nobody wants", "OBEYS_THE_PLAN",
           Instructions, "wants_pull", property(lambda self: True)),
    _plant("prefill pulls more than is wanted", "OBEYS_THE_PLAN",
           Instructions, "from_json", staticmethod(_wants_everything)),
    _plant("a leg that failed is not sent again", "NEVER_FAILS",
           Turn, "may_retry", _never_sends_again),
    _plant("a leg is sent again with its blocks", "NOT_AGAIN AT_MOST_ONE_READ",
           Decode, "_again", _keeps_the_blocks),
    _plant("a turn needs a prefill engine that answers", "NEVER_FAILS",
           Prefill, "_leg", _goes_without_prefill_at_no_time),
    _plant("a turn needs an eligible prefill engine", "NEVER_FAILS",
           Planner, "plan", _plans_no_turn_without_prefill),
    _plant("a lapsed registration stays so", "REUSE_RETURNS NOTHING_LEAKS NEVER_FAILS",
           EngineRegistration, "_note", _never_registers_anew),
)  # fmt: skip
"""Of each invariant that can be broken in one process two at least."""
