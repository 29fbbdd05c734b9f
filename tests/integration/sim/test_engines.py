"""Sim engines as `contraflow engine-sim` starts them: legs between them, ranks, a process."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
import zmq
import zmq.asyncio
from tests.integration.sim.conftest import Client, Json
from tests.support.wait import until_good

from contraflow.cli.demo.script import FIVE_TURNS, TOOLS, Conversation
from contraflow.cli.deployment.metrics import parse_samples, prompt_tokens
from contraflow.runtime.address import Address
from contraflow.sim.events_zmq import BlockStored, KVEventBatch
from contraflow.sim.main import Flags, serve

pytestmark = pytest.mark.integration

BLOCK = 32
GREEDY: Json = {"model": "sim", "temperature": 0, "return_token_ids": True, "ignore_eos": True}
Start = Callable[..., Awaitable[Client]]


@asynccontextmanager
async def serving(flags: Flags) -> AsyncIterator[Address]:
    stop = asyncio.Event()
    address: asyncio.Future[Address] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(flags, stop=stop, started=address.set_result))
    first: set[asyncio.Future[Any]] = {task, address}
    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    try:
        if task.done():
            task.result()
        yield address.result()
    finally:
        stop.set()
        await task


def transfer(engine_id: str, role: str) -> str:
    kv_role = "kv_both" if role == "prefill" else "kv_consumer"
    extra = {"bidirectional_kv_xfer": True, "contraflow": {"role": role}}
    config = {"engine_id": engine_id, "kv_role": kv_role, "kv_connector_extra_config": extra}
    return json.dumps(config)


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def one(kv: str = "", ranks: int = 1, events: str = "") -> Client:
            flags = Flags(
                model="sim", port=0, side_channel_port=0, block_size=BLOCK, num_blocks=256,
                max_model_len=4096, kv_transfer_config=kv, data_parallel_size=ranks,
                kv_events_config=events, log_level="error",
            )  # fmt: skip
            address = await stack.enter_async_context(serving(flags))
            return Client(session, f"http://{address}")

        yield one


async def leg(client: Client, prompt: list[int], params: Json | None, tokens: int) -> Json:
    body = {**GREEDY, "prompt": prompt, "max_tokens": tokens, "kv_transfer_params": params}
    status, answer = await client.post("/v1/completions", body)
    assert status == 200, answer
    return answer


def text(length: int) -> list[int]:
    dice = random.Random(7)
    return [dice.randrange(40, 120) for _ in range(length)]


async def test_a_decode_engine_pulls_the_prompt_and_answers_as_a_plain_engine(start: Start) -> None:
    prefill, decode = await start(transfer("p", "prefill")), await start(transfer("d", "decode"))
    reference = await start()
    prompt = text(200)

    first = await leg(prefill, prompt, {"do_remote_decode": True, "do_remote_prefill": False}, 1)
    params = first["kv_transfer_params"]
    second = await leg(decode, prompt, params, 60)
    plain = await leg(reference, prompt, None, 60)

    assert params["remote_request_id"].startswith("cmpl-")
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == len(prompt)
    assert second["choices"][0]["token_ids"] == plain["choices"][0]["token_ids"]
    counted = prompt_tokens(parse_samples((await decode.get("/metrics"))[1]))
    assert (counted.pulled, counted.computed) == (len(prompt), 0)
    assert counted.bytes > 0


async def test_without_a_connector_an_engine_returns_no_parameters(start: Start) -> None:
    answer = await leg(await start(), text(50), {"do_remote_decode": True}, 1)
    assert answer["kv_transfer_params"] is None


async def test_ranks_have_caches_of_their_own(start: Start) -> None:
    client = await start(ranks=2)
    body = {**GREEDY, "prompt": text(3 * BLOCK), "max_tokens": 1}

    async def cached(rank: int) -> int:
        _, answer = await client.post("/v1/completions", body, X_data_parallel_rank=str(rank))
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [await cached(0), await cached(1), await cached(0)] == [0, 0, 2 * BLOCK]


async def test_the_demos_first_turn_calls_a_tool_and_its_history_is_a_prefix(start: Start) -> None:
    client = await start()
    turn, conversation = FIVE_TURNS[0], Conversation()
    conversation.say(turn)
    body = {"model": "sim", "tools": TOOLS, "return_token_ids": True, **turn.sampling()}
    _, answer = await client.post(
        "/v1/chat/completions", {**body, "messages": conversation.messages}
    )
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    conversation.hear(choice["message"])
    conversation.say(FIVE_TURNS[1])
    _, after = await client.post(
        "/tokenize", {"messages": conversation.messages, "tools": list(TOOLS)}
    )
    spoken = answer["prompt_token_ids"] + choice["token_ids"]
    assert after["tokens"][: len(spoken)] == spoken


async def test_kv_events_tell_what_can_be_found_in_the_cache(start: Start) -> None:
    context = zmq.asyncio.Context()
    subscriber = context.socket(zmq.SUB)
    subscriber.subscribe(b"")
    port = subscriber.bind_to_random_port("tcp://127.0.0.1")
    events = {"enable_kv_cache_events": True, "endpoint": f"tcp://127.0.0.1:{port}"}
    try:
        client = await start(events=json.dumps(events))
        for token in range(40, 120):
            await leg(client, [token] * 2 * BLOCK, None, 1)
            if await subscriber.poll(50):  # the subscription takes a moment
                break
        async with asyncio.timeout(10):
            _, _, payload = await subscriber.recv_multipart()
    finally:
        context.destroy(linger=0)
    batch = msgspec.msgpack.decode(payload, type=KVEventBatch)
    assert batch.data_parallel_rank == 0
    stored = batch.events[0]
    assert isinstance(stored, BlockStored)
    assert len(stored.token_ids) == BLOCK * len(stored.block_hashes) > 0


async def test_an_engine_that_is_stopped_lets_readers_finish_and_answers_nothing_new(
    start: Start,
) -> None:
    decode, stop = await start(transfer("d", "decode")), asyncio.Event()
    address: asyncio.Future[Address] = asyncio.get_running_loop().create_future()
    flags = Flags(
        model="sim", port=0, side_channel_port=0, block_size=BLOCK, max_model_len=4096,
        kv_transfer_config=transfer("p", "prefill"), shutdown_timeout=20, log_level="error",
    )  # fmt: skip
    stopping = asyncio.create_task(serve(flags, stop=stop, started=address.set_result))
    async with aiohttp.ClientSession() as session:
        prefill, prompt = Client(session, f"http://{await address}"), text(200)
        plain = await leg(prefill, prompt, None, 60)
        first = await leg(prefill, prompt, {"do_remote_decode": True}, 1)
        stop.set()

        async def reason() -> str:
            choice = (await leg(prefill, text(50), None, 5))["choices"][0]
            assert choice["finish_reason"] == "length" or choice["token_ids"] == []
            return str(choice["finish_reason"])

        await until_good(reason, lambda found: found == "abort")
        assert not stopping.done()
        second = await leg(decode, prompt, first["kv_transfer_params"], 60)
        await asyncio.wait_for(stopping, 10)

    assert second["choices"][0]["token_ids"] == plain["choices"][0]["token_ids"]
    counted = prompt_tokens(parse_samples((await decode.get("/metrics"))[1]))
    assert counted.pulled == len(prompt)


async def test_an_engine_that_is_stopped_aborts_what_runs() -> None:
    flags = Flags(model="sim", port=0, side_channel_port=0, profile="cpu-demo", log_level="error")
    async with aiohttp.ClientSession() as session:
        async with serving(flags) as address:
            body = {**GREEDY, "prompt": text(50), "max_tokens": 30_000, "stream": True}
            url = f"http://{address}/v1/completions"
            answer = await session.post(url, json=body)
            await answer.content.readline()
        said = await answer.content.read()
    assert b'"finish_reason": "abort"' in said or b'"finish_reason":"abort"' in said
    assert said.endswith(b"data: [DONE]\n\n")


def test_the_process_serves_and_ends_on_a_signal() -> None:
    command = [sys.executable, "-m", "contraflow.cli.main", "engine-sim", "--model", "sim"]
    process = subprocess.Popen(
        [*command, "--port", "0", "--side-channel-port", "0"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        assert json.loads(process.stderr.readline())["event"] == "serving"
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=20)
        assert process.returncode == 0
        assert [json.loads(line)["event"] for line in rest.splitlines()] == ["stopping", "stopped"]
    finally:
        process.kill()
        process.wait()
