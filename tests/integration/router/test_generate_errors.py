"""Generate over real gRPC: what is refused, and how failures of engines arrive."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from tests.support.fake_engine import Received
from tests.support.router_stub import chat, failure, kinds, router_stub, text_of
from tests.support.router_world import SESSION, World, config_of, router_world

from contraflow.core.errors import Reason
from contraflow.runtime.grpc_errors import from_rpc_error
from contraflow.v1 import router_service_pb2 as pb

if TYPE_CHECKING:
    from contraflow.v1.router_service_pb2_grpc import RouterServiceAsyncStub

pytestmark = pytest.mark.integration

Code = grpc.StatusCode
MESSAGES = "/v1/messages"


def raw(body: Any, path: str = "", **fields: Any) -> pb.GenerateRequest:
    text = body if isinstance(body, str) else json.dumps(body)
    return pb.GenerateRequest(raw=pb.RawRequest(path=path, json=text), **fields)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.GenerateRequest(), "prompt"),
        (pb.GenerateRequest(extra_json='{"messages": []}'), "prompt"),
        (pb.GenerateRequest(messages=pb.Messages()), "messages.messages"),
        (pb.GenerateRequest(token_ids=pb.TokenIds()), "token_ids.ids"),
        (
            pb.GenerateRequest(messages=pb.Messages(messages=[pb.Message(content="hi")])),
            "messages.messages[0].role",
        ),
        (
            pb.GenerateRequest(
                messages=pb.Messages(messages=[pb.Message(role="user", extra_json="[]")])
            ),
            "messages.messages[0].extra_json",
        ),
        (chat(extra_json="{"), "extra_json"),
        (chat(extra_json="7"), "extra_json"),
        (chat(extra_json="[" * 100_000), "extra_json"),
        (chat(extra_json='{"stream_options": 7}'), "stream_options"),
        (chat(extra_json='{"cache_salt": true}'), "cache_salt"),
        (chat(sampling=pb.Sampling(temperature=float("nan"))), "sampling.temperature"),
        (chat(sampling=pb.Sampling(top_p=float("inf"))), "sampling.top_p"),
        (raw(""), "raw.json"),
        (raw("null"), "raw.json"),
        (raw({}, path="/v1/embeddings"), "raw.path"),
        (raw({"model": 7}), "model"),
        (raw({"session_id": []}), "session_id"),
        (raw({}, path=MESSAGES, sampling=pb.Sampling(seed=1)), "sampling.seed"),
    ],
)
async def test_what_is_wrong_with_a_request_is_named(
    world: World, stub: RouterServiceAsyncStub, request_: pb.GenerateRequest, field: str
) -> None:
    code, error, events = await failure(stub, request_)
    assert (code, error.reason) == (Code.INVALID_ARGUMENT, Reason.INVALID_ARGUMENT)
    assert error.metadata == {"field": field}
    assert str(error)
    assert not events
    assert not world.prefill.received


async def test_a_model_that_nobody_serves(stub: RouterServiceAsyncStub) -> None:
    code, error, _ = await failure(stub, chat(model="m" * 100_000))
    assert (code, error.reason) == (Code.NOT_FOUND, Reason.NOT_FOUND)
    assert str(error).startswith("The model `mmm")


async def test_without_a_decode_engine(world: World, stub: RouterServiceAsyncStub) -> None:
    del world.replica.engines["d1"]
    code, error, events = await failure(stub, chat())
    assert (code, error.reason) == (Code.UNAVAILABLE, Reason.NO_ELIGIBLE_ENGINE)
    assert "decode" in str(error)
    assert not events


async def test_without_a_key() -> None:
    config = config_of('[tenants.red]\napi_keys = ["r1"]')
    async with router_world(config) as world, router_stub(world) as stub:
        for metadata in ((), (("authorization", "Bearer nope"),)):
            code, error, events = await failure(stub, chat(), metadata=metadata)
            assert (code, error.reason) == (Code.UNAUTHENTICATED, Reason.UNAUTHENTICATED)
            assert not events
        assert not world.prefill.received


@pytest.mark.parametrize("leg", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (400, Code.INVALID_ARGUMENT, Reason.INVALID_ARGUMENT),
        (401, Code.UNAVAILABLE, Reason.ENGINE_FAILED),
        (404, Code.NOT_FOUND, Reason.NOT_FOUND),
        (413, Code.INVALID_ARGUMENT, Reason.INVALID_ARGUMENT),
        (422, Code.INVALID_ARGUMENT, Reason.INVALID_ARGUMENT),
        (429, Code.RESOURCE_EXHAUSTED, Reason.OVERLOADED),
        (500, Code.UNAVAILABLE, Reason.ENGINE_FAILED),
        (503, Code.UNAVAILABLE, Reason.ENGINE_FAILED),
        (504, Code.DEADLINE_EXCEEDED, Reason.ENGINE_UNRESPONSIVE),
    ],
)
async def test_an_engines_refusal_is_translated(
    world: World, stub: RouterServiceAsyncStub, leg: str, status: int, code: Code, reason: Reason
) -> None:
    engine = world.prefill if leg == "prefill" else world.decode
    engine.script.statuses = [status] * 2  # decode may be asked once more, without blocks
    got, error, events = await failure(stub, chat())
    assert (got, error.reason) == (code, reason)
    assert str(error) == f"engine says {status}"
    assert kinds(events) == ["plan"]
    assert world.app.homes.by_key == {}


async def test_an_engine_that_is_gone(world: World, stub: RouterServiceAsyncStub) -> None:
    await world.decode.stop()
    code, error, events = await failure(stub, chat())
    assert (code, error.reason) == (Code.UNAVAILABLE, Reason.ENGINE_FAILED)
    assert "decode" in str(error)
    assert kinds(events) == ["plan"]


async def test_a_stream_that_breaks_has_no_result(
    world: World, stub: RouterServiceAsyncStub
) -> None:
    async def cut(received: Received) -> None:
        raise ConnectionError("cut")

    world.decode.script.between_chunks = cut
    code, error, events = await failure(stub, chat(**SESSION))
    assert (code, error.reason) == (Code.UNAVAILABLE, Reason.ENGINE_FAILED)
    assert "incomplete" in str(error)
    assert set(kinds(events)) <= {"plan", "chunk"}
    assert world.app.homes.by_key == {}


DELTA = b'data: {"choices":[{"index":0,"delta":{"content":"to"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


async def test_a_stream_that_ends_without_its_end_is_incomplete(
    world: World, stub: RouterServiceAsyncStub
) -> None:
    world.decode.script.events = lambda received: [DELTA]
    code, error, events = await failure(stub, chat())
    assert (code, error.reason) == (Code.UNAVAILABLE, Reason.ENGINE_FAILED)
    assert text_of(events) == "to"


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(
    "event", [{"message": "too long", "code": 400}, {"message": "too long", "code": "odd"}, {}]
)
async def test_an_error_inside_of_a_stream(
    world: World, stub: RouterServiceAsyncStub, event: Any, begun: bool
) -> None:
    data = b"data: " + json.dumps({"error": event}).encode() + b"\n\n"
    world.decode.script.events = lambda received: [*([DELTA] if begun else []), data, DONE]
    code, error, events = await failure(stub, chat())
    refused = not begun and event.get("code") == 400
    assert code == (Code.INVALID_ARGUMENT if refused else Code.UNAVAILABLE)
    assert error.reason == (Reason.INVALID_ARGUMENT if refused else Reason.ENGINE_FAILED)
    assert str(error) == event.get("message", "the engine answered with status 500")
    assert text_of(events) == ("to" if begun else "")


@pytest.mark.parametrize("data", [b"data: {\n\n", b"data: 7\n\n", b'data: {"a": "\xff"}\n\n'])
async def test_an_event_that_can_not_be_read(
    world: World, stub: RouterServiceAsyncStub, data: bytes
) -> None:
    world.decode.script.events = lambda received: [data, DONE]
    code, error, _ = await failure(stub, chat())
    assert (code, error.reason) == (Code.UNAVAILABLE, Reason.ENGINE_FAILED)


async def test_no_json_makes_an_internal_error(world: World, stub: RouterServiceAsyncStub) -> None:
    rng = random.Random(7)
    names = (
        "model", "messages", "prompt", "session_id", "conversation_id", "prompt_cache_key", "n",
        "cache_salt", "stream", "stream_options", "vllm_xargs", "kv_transfer_params", "system",
        "tool_choice", "max_tokens", "echo", "logprobs", "role", "content", "metadata",
    )  # fmt: skip

    def value(depth: int = 0) -> Any:
        kind = rng.randrange(8 if depth < 3 else 6)
        if kind == 6:
            return [value(depth + 1) for _ in range(rng.randrange(3))]
        if kind == 7:
            return {rng.choice(names): value(depth + 1) for _ in range(rng.randrange(4))}
        texts = ("", "tiny", "user", "assistant", "\ud800", "\x00é")
        return (None, True, -1, 10**30, 1e308, rng.choice(texts))[kind]

    reasons: set[Reason | None] = set()
    for _ in range(300):
        body = json.dumps({rng.choice(names): value() for _ in range(4)})
        if not rng.randrange(4):
            body = body[: rng.randrange(len(body))]
        path = rng.choice(("", "/v1/completions", MESSAGES))
        extra = json.dumps({rng.choice(names): value()})
        request = raw(body, path, extra_json=extra if rng.randrange(2) else "")
        try:
            async for _event in stub.Generate(request, timeout=30):
                pass
            reasons.add(None)
        except grpc.aio.AioRpcError as error:
            reasons.add(from_rpc_error(error).reason)
    assert {Reason.INVALID_ARGUMENT, None} <= reasons
    assert reasons <= {Reason.INVALID_ARGUMENT, Reason.NOT_FOUND, None}
