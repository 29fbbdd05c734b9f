"""A prefill, a decode and a reference engine over one fabric, on a clock that stands still."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from contraflow.core.handle import ClaimRequest, Handle
from contraflow.core.instructions import Instructions
from contraflow.core.transfer_params import (
    OURS,
    Params,
    for_decode,
    for_plain_prefill,
    for_pulling_prefill,
)
from contraflow.runtime.clock import Clock
from contraflow.sim.api import SimOutput, SimRequest
from contraflow.sim.engine import SimEngine, offer
from contraflow.sim.fabric import MemoryFabric
from contraflow.sim.options import SimOptions
from contraflow.v1 import handle_pb2
from contraflow.wire.params import params_from_proto, params_to_proto
from tests.support.clock import ManualClock, SkewedClock

T = TypeVar("T")

BLOCK = 16
TOLD = Instructions(tenant="acme", session_key="0" * 32, turn_id="t1")


class FakeLink:
    """An agent that is always there, and hears the reports."""

    def __init__(self) -> None:
        self.reports: list[handle_pb2.PullReport] = []

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def silent_for(self) -> float:
        return 0.0

    def report(self, report: handle_pb2.PullReport) -> None:
        self.reports.append(report)


class Answer:
    """All outputs of a request."""

    def __init__(self, outputs: list[SimOutput]) -> None:
        self.tokens = [token for output in outputs for token in output.token_ids]
        self.last = outputs[-1]

    @property
    def params(self) -> Params:
        """The parameters returned, as JSON carries them."""
        assert self.last.kv_transfer_params is not None
        carried: Params = json.loads(json.dumps(self.last.kv_transfer_params))
        return carried

    @property
    def pull(self) -> dict[str, Any]:
        """P's report."""
        report: dict[str, Any] = self.params[OURS]["pull"]
        return report


def a_prompt(length: int, start: int = 0) -> list[int]:
    """Letters that do not repeat within a block."""
    return [97 + (start + i * 7) % 26 for i in range(length)]


async def soon(condition: Callable[[], bool], what: str) -> None:
    """Let the loop run until ``condition`` holds."""
    for _ in range(20_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError(f"not soon: {what}")


async def played(clock: ManualClock, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end; whenever everybody sleeps, time moves on."""
    task = asyncio.ensure_future(work)
    for _ in range(1_000_000):
        for _ in range(30):
            await asyncio.sleep(0)
        if task.done():
            break
        clock.advance_to_next()
    return await task


class Pair:
    """The two engines, and what a router does with them."""

    def __init__(
        self,
        prefill: SimEngine,
        decode: SimEngine,
        clock: ManualClock,
        fabric: MemoryFabric | None = None,
    ) -> None:
        self.prefill = prefill
        self.decode = decode
        self.clock = clock
        self.fabric = fabric or MemoryFabric()
        self.links = {prefill.engine_id: FakeLink(), decode.engine_id: FakeLink()}
        self._made = 0

    async def ask(
        self,
        engine: SimEngine,
        prompt: list[int],
        params: Params | None = None,
        *,
        max_tokens: int = 20,
        **fields: Any,
    ) -> Answer:
        """Run one request to its end, which must come within a minute of real time."""
        stream = self.start(engine, prompt, params, max_tokens=max_tokens, **fields)
        async with asyncio.timeout(60.0):
            return Answer([output async for output in stream])

    def start(
        self,
        engine: SimEngine,
        prompt: list[int],
        params: Params | None = None,
        *,
        max_tokens: int = 20,
        **fields: Any,
    ) -> AsyncGenerator[SimOutput, None]:
        """A request that the caller drives. EOS is ignored unless asked for."""
        self._made += 1
        known: dict[str, Any] = {"request_id": f"r{self._made}", "ignore_eos": True}
        carried = json.loads(json.dumps(params)) if params is not None else None
        return engine.generate(
            SimRequest(
                prompt_token_ids=prompt,
                max_tokens=max_tokens,
                kv_transfer_params=carried,
                **{**known, **fields},
            )
        )

    async def prefilled(self, prompt: list[int], params: Params | None = None) -> Answer:
        """The prefill leg."""
        params = for_plain_prefill() | {OURS: TOLD.to_json()} if params is None else params
        return await self.ask(self.prefill, prompt, params, max_tokens=1)

    @staticmethod
    def for_decode_leg(prefilled: Answer) -> Params:
        """What the router makes of P's answer."""
        params = for_decode(prefilled.params)
        return params | {OURS: TOLD.to_json() | {"tip": params[OURS]["tip"]}}

    async def turn(
        self, prompt: list[int], params: Params | None = None, *, max_tokens: int = 20
    ) -> Answer:
        """Both legs; D retains a handle."""
        leg = self.for_decode_leg(await self.prefilled(prompt, params))
        return await self.ask(self.decode, prompt, leg, max_tokens=max_tokens)

    def claim(
        self,
        claim_id: str = "c1",
        *,
        start_by: float = 60.0,
        max_read: float = 10.0,
        hint: str = "",
    ) -> Handle:
        """The agent's order to D."""
        request = ClaimRequest(
            claim_id, TOLD.tenant, TOLD.session_key, start_by, max_read, hint_handle_id=hint
        )
        return self.decode.retained.acquire(request)

    @staticmethod
    def for_pull(handle: Handle, **use: Any) -> Params:
        """What the router makes of a claimed handle for P; ``use``: what it shall do with it."""
        assert handle.claim is not None
        told = replace(
            TOLD, claim_id=handle.claim.claim_id, proof=handle.proof, **{"decision": "PULL", **use}
        )
        params = params_from_proto(params_to_proto(offer(handle)))
        return for_pulling_prefill(params) | {OURS: told.to_json()}

    def handles(self) -> list[Handle]:
        """Live handles of D."""
        live = self.decode.retained.subscribe(lambda handle: None)
        self.decode.retained.unsubscribe()
        return live

    async def nothing_is_held(self, *engines: SimEngine) -> None:
        """Wait until all blocks of the engines (both, by default) are free."""
        for engine in engines or (self.prefill, self.decode):
            await soon(
                lambda engine=engine: engine.pool.num_free == engine.pool.capacity,  # type: ignore[misc]
                f"all blocks of {engine.engine_id} free",
            )


@asynccontextmanager
async def running(engines: Iterable[SimEngine]) -> AsyncIterator[None]:
    """Engines for as long as the context lasts."""
    started = list(engines)
    for engine in started:
        await engine.start()
    try:
        yield
    finally:
        for engine in started:
            await engine.close()


@asynccontextmanager
async def a_pair(
    *,
    prefill: dict[str, Any] | None = None,
    decode: dict[str, Any] | None = None,
    skew: float = 0.0,
    **both: Any,
) -> AsyncIterator[Pair]:
    """Two engines, started; the options of both, or of each. The clock of the decode engine is
    ``skew`` seconds ahead."""
    clock, fabric = ManualClock(), MemoryFabric()
    clocks: dict[str, Clock] = {"prefill": clock, "decode": SkewedClock(clock, skew)}
    links: list[FakeLink] = []

    def make_link(*_: object) -> FakeLink:
        links.append(FakeLink())
        return links[-1]

    def engine(name: str, own: dict[str, Any]) -> SimEngine:
        options = SimOptions(engine_id=name, role=name, **{"block_size": BLOCK, **both, **own})
        return SimEngine(
            options, clock=clocks[name], fabric=fabric, make_link=make_link, instance=f"{name}-1"
        )

    pair = Pair(engine("prefill", prefill or {}), engine("decode", decode or {}), clock, fabric)
    async with running([pair.prefill, pair.decode]):
        pair.links = dict(zip((pair.prefill.engine_id, pair.decode.engine_id), links, strict=True))
        yield pair


async def expected(
    prompt: list[int], max_tokens: int = 20, *, block_size: int = BLOCK, **fields: Any
) -> list[int]:
    """What an engine without a connector answers, from an empty cache. What the sim's model says
    depends on the size of its blocks."""
    engine = SimEngine(
        SimOptions(reference=True, block_size=block_size),
        clock=ManualClock(),
        fabric=MemoryFabric(),
    )
    known: dict[str, Any] = {"ignore_eos": True}
    request = SimRequest("ref", prompt, max_tokens, **{**known, **fields})
    async with running([engine]):
        return Answer([output async for output in engine.generate(request)]).tokens
