"""Engines that reach each other by TCP, and one that speaks to an agent."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.support.clock import ManualClock
from tests.support.fake_agent_link import agent_at
from tests.support.sim_pair import (
    TOLD,
    Answer,
    FakeLink,
    Pair,
    a_prompt,
    expected,
    running,
)
from tests.support.wait import until

from contraflow.core.transfer_params import OURS, for_plain_decode
from contraflow.runtime.clock import SystemClock
from contraflow.sim.api import SimRequest
from contraflow.sim.engine import SimEngine
from contraflow.sim.fabric import FabricError, MemoryFabric
from contraflow.sim.fabric_tcp import TcpFabric
from contraflow.sim.options import SimOptions
from contraflow.v1 import engine_link_service_pb2 as pb
from contraflow.wire.convert import duration
from contraflow.wire.params import params_from_proto


def an_engine(role: str, **fields: Any) -> SimEngine:
    return SimEngine(
        SimOptions(engine_id=role, role=role, **fields),
        clock=SystemClock(),
        fabric=TcpFabric(),
        make_link=lambda *_: FakeLink(),
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_scenario_14_blocks_travel_both_ways(host: str) -> None:
    prefill, decode = an_engine("prefill", side_host=host), an_engine("decode", side_host=host)
    async with running([prefill, decode]):
        pair = Pair(prefill, decode, ManualClock())
        prompt = a_prompt(50)
        first = await pair.turn(prompt)
        assert first.tokens == await expected(prompt)
        assert first.last.num_cached_tokens == 50
        prefill.clear_prefix_cache()
        history = [*prompt, *first.tokens, *a_prompt(9)]
        second = await pair.prefilled(history, pair.for_pull(pair.claim()))
        assert second.pull["pulled_tokens"] == 50 + 19
        assert second.tokens == await expected(history, 1)
        pool = decode.pool
        await until(lambda: pool.num_free == pool.capacity, "what was read is freed")


async def test_an_engine_that_is_gone_fails_the_read() -> None:
    prefill, decode = an_engine("prefill"), an_engine("decode")
    async with running([prefill, decode]):
        pair = Pair(prefill, decode, ManualClock())
        leg = pair.for_decode_leg(await pair.prefilled(a_prompt(50)))
        await prefill.close()
        answer = await pair.ask(decode, a_prompt(50), leg)
        assert answer.tokens == await expected(a_prompt(50))
        assert decode.counters.nixl_failed_transfers == 1


@pytest.mark.parametrize("fabric", [TcpFabric, MemoryFabric])
@pytest.mark.parametrize(
    ("strange", "reads"),
    [
        ({"remote_port": "x"}, 0),
        ({"remote_port": 2**20}, 0),
        ({"remote_host": 5}, 0),
        ({"remote_host": "a..b"}, 1),
        ({"remote_host": "\x00"}, 1),
        ({"remote_engine_id": 5}, 0),
        ({"remote_block_ids": [[10**30, 10**31]]}, 0),
        ({"remote_block_ids": [[5000, 5001]]}, 1),
    ],
)
async def test_parameters_that_name_nothing_fail_the_read_or_begin_none(
    fabric: type[Any], strange: dict[str, Any], reads: int
) -> None:
    shared = fabric()
    prefill, decode = (
        SimEngine(
            SimOptions(engine_id=role, role=role),
            clock=SystemClock(),
            fabric=shared,
            make_link=lambda *_: FakeLink(),
        )
        for role in ("prefill", "decode")
    )
    async with running([prefill, decode]):
        pair = Pair(prefill, decode, ManualClock())
        leg = pair.for_decode_leg(await pair.prefilled(a_prompt(20))) | strange
        answer = await pair.ask(decode, a_prompt(20), leg)
        assert answer.tokens == await expected(a_prompt(20))
        assert answer.last.num_cached_tokens == 0
        assert decode.counters.nixl_failed_transfers == reads


async def test_an_open_connection_ends_with_its_owner() -> None:
    owner = an_engine("prefill")
    async with running([owner]):
        params = await Pair(owner, owner, ManualClock()).prefilled(a_prompt(5))
        host, port = params.params["remote_host"], params.params["remote_port"]
        connection = await TcpFabric().connect(host, port)
        (block,) = await connection.read(params.params["remote_block_ids"][0])
        assert (block.tokens, block.generation) == (a_prompt(5), 1)
        await connection.heartbeat(["r1"])
        await owner.close()
        with pytest.raises(FabricError):
            await connection.read([1])
        await connection.close()
        with pytest.raises(FabricError):
            await TcpFabric().connect(host, port)


async def test_blocks_that_do_not_exist_and_nonsense_end_the_connection_only() -> None:
    owner = an_engine("prefill", num_blocks=10)
    async with running([owner]):
        params = (await Pair(owner, owner, ManualClock()).prefilled(a_prompt(5))).params
        host, port = params["remote_host"], params["remote_port"]
        for ids in ([10], [-1]):
            connection = await TcpFabric().connect(host, port)
            with pytest.raises(FabricError):
                await connection.read(ids)
            await connection.close()
        _, writer = await asyncio.open_connection(host, port)
        writer.write(b"\x00\x00\x00\x03xyz\xff\xff\xff\xff")
        await writer.drain()
        writer.close()
        connection = await TcpFabric().connect(host, port)
        assert connection.hello.engine_id == owner.engine_id
        await connection.close()


async def test_scenario_15_a_data_parallel_rank_listens_behind_the_base_port() -> None:
    fabric = MemoryFabric()
    engine = SimEngine(
        SimOptions(side_port=5600, dp_rank=2, side_host="fd00::1"),
        clock=ManualClock(),
        fabric=fabric,
    )
    async with running([engine]):
        assert list(fabric.owners) == [("fd00::1", 5602)]
        assert engine.description.dp_rank == 2
    assert fabric.owners == {}


async def test_a_port_that_is_taken_stops_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        engine = an_engine("prefill", side_port=taken.getsockname()[1])
        with pytest.raises(OSError, match="address already in use"):
            await engine.start()
        await engine.close()


async def test_an_agent_sees_the_handle_claims_it_and_has_it_freed(tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/agent.sock"
    with agent_at(target) as agent:
        options = SimOptions(role="decode", agent=target, endpoint="http://127.0.0.1:9")
        engine = SimEngine(options, clock=SystemClock(), fabric=MemoryFabric())
        async with running([engine]):
            stream, hello = await asyncio.to_thread(agent.linked)
            assert hello.engine.engine_id == engine.engine_id
            assert hello.engine.bidirectional
            link = engine._link
            assert link is not None
            await until(lambda: link.silent_for() == 0.0, "attached")
            assert hello.engine.compatibility_class == options.compatibility_class
            params = for_plain_decode() | {OURS: TOLD.to_json()}
            request = SimRequest("r1", a_prompt(50), 5, kv_transfer_params=params)
            answer = Answer([output async for output in engine.generate(request)])
            told = (await asyncio.to_thread(stream.hear, "handle_update")).handle
            assert told.num_tokens == 50 + len(answer.tokens) - 1
            order = pb.Acquire(
                call_id=1,
                claim_id="c1",
                tenant=TOLD.tenant,
                session_key=TOLD.session_key,
                start_by=duration(60.0),
                max_read=duration(10.0),
            )
            stream.say(acquire=order)
            await asyncio.to_thread(stream.hear, "handle_update")
            grant = (await asyncio.to_thread(stream.hear, "acquire_result")).grant
            given = params_from_proto(grant.transfer_params)
            assert given["remote_request_id"] == "r1"
            stream.say(return_order=pb.ReturnOrder(call_id=2, claim_id="c1"))
            await asyncio.to_thread(stream.hear, "handle_update")
            await asyncio.to_thread(stream.hear, "return_result")
            assert engine.counters.kv_cache_usage > 0
            stream.say(release=pb.Release(call_id=3, handle_ids=[told.handle_id]))
            # A resting engine is woken by an order on the link's own thread.
            await until(lambda: engine.counters.kv_cache_usage == 0, "the blocks are freed")
