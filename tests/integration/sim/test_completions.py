"""What clients and routers get from the completion route, and what the engine is asked for."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.integration.sim.conftest import MODEL, Json, Serve
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wait import until

from contraflow.sim.vocab import EOS

PATH = "/v1/completions"
PROMPT = [104, 105, 33]
BODY: Json = {"model": MODEL, "prompt": "hi!", "max_tokens": 16, "temperature": 0}


async def test_an_answer_has_text_usage_and_transfer_parameters(
    serve: Serve, engine: ScriptedEngine
) -> None:
    engine.cached = 2
    status, answer = await (await serve(engine)).post(PATH, BODY, X_Request_Id="r-1")

    assert status == 200
    assert answer["id"] == "cmpl-r-1"
    assert answer["object"] == "text_completion"
    assert answer["model"] == MODEL
    assert answer["kv_transfer_params"] == engine.params
    (choice,) = answer["choices"]
    assert choice["text"] == "hello"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
    assert choice["token_ids"] is None
    assert choice["prompt_token_ids"] is None
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 6,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


async def test_token_ids_are_returned_for_the_asking(serve: Serve, engine: ScriptedEngine) -> None:
    client = await serve(engine)
    body = {**BODY, "prompt": PROMPT, "return_token_ids": True}
    _, answer = await client.post(PATH, body)
    stream = await client.stream(PATH, body)

    (choice,) = answer["choices"]
    assert choice["prompt_token_ids"] == PROMPT
    assert choice["token_ids"] == [*b"hello", EOS]
    deltas = stream.deltas()
    assert [delta["prompt_token_ids"] for delta in deltas] == [PROMPT] + [None] * 5
    assert stream.token_ids() == choice["token_ids"]


@pytest.mark.parametrize("vllm", ["0.32.0", "0.33.0"])
async def test_streams_carry_transfer_parameters_from_0_33_on(
    serve: Serve, engine: ScriptedEngine, vllm: str
) -> None:
    client = await serve(engine, vllm=vllm)
    stream = await client.stream(PATH, {**BODY, "stream_options": {"include_usage": True}})

    assert stream.done
    *chunks, usage = stream.chunks
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "hello"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 5 + ["stop"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 6
    carried = [chunk.get("kv_transfer_params", "absent") for chunk in stream.chunks]
    if vllm == "0.32.0":
        assert carried == ["absent"] * 7
    else:
        assert carried == [None] * 5 + [engine.params, "absent"]


async def test_the_engine_gets_what_the_request_says(serve: Serve, engine: ScriptedEngine) -> None:
    client = await serve(engine)
    params = {"do_remote_decode": True, "contraflow": {"x": 1}}
    await client.post(
        PATH,
        {
            **BODY,
            "prompt": PROMPT,
            "max_tokens": 9,
            "min_tokens": 2,
            "stop_token_ids": [5, 6],
            "ignore_eos": True,
            "temperature": 0.5,
            "seed": 11,
            "cache_salt": "salt",
            "session_id": "chat-1",
            "prompt_logprobs": 0,
            "kv_transfer_params": params,
        },
        X_Request_Id="r-1",
    )

    (request,) = engine.received
    assert request.prompt_token_ids == PROMPT
    assert (request.max_tokens, request.min_tokens) == (9, 2)
    assert request.stop_token_ids == {5, 6}
    assert request.ignore_eos
    assert (request.temperature, request.seed) == (0.5, 11)
    assert (request.cache_salt, request.session_id) == ("salt", "chat-1")
    assert request.skip_prefix_cache
    assert request.kv_transfer_params == params
    assert request.request_id.startswith("cmpl-r-1-0-")


async def test_requests_that_share_an_id_are_different_for_the_engine(
    serve: Serve, engine: ScriptedEngine
) -> None:
    client = await serve(engine)
    for _ in range(2):
        await client.post(PATH, BODY, X_Request_Id="same")
    first, second = engine.received
    assert first.request_id != second.request_id


@pytest.mark.parametrize(
    ("fields", "header", "session"),
    [
        ({"session_id": "body"}, "header", "body"),
        ({}, "header", "header"),
        ({"vllm_xargs": {"session_id": "extra"}}, "", "extra"),
        ({}, "", ""),
    ],
)
async def test_the_session_is_in_the_body_or_a_header(
    serve: Serve, engine: ScriptedEngine, fields: Json, header: str, session: str
) -> None:
    headers = {"X_Session_ID": header} if header else {}
    await (await serve(engine)).post(PATH, {**BODY, **fields}, **headers)
    assert engine.received[0].session_id == session


async def test_a_stop_string_ends_the_request_and_keeps_nothing(
    serve: Serve, engine: ScriptedEngine
) -> None:
    client = await serve(engine)
    body = {**BODY, "stop": ["lo", "x"]}
    _, answer = await client.post(PATH, body)
    stream = await client.stream(PATH, body)

    (choice,) = answer["choices"]
    assert choice["text"] == "hel"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "lo")
    assert answer["kv_transfer_params"] is None
    assert "".join(delta["text"] for delta in stream.deltas()) == "hel"
    assert engine.aborted == [request.request_id for request in engine.received]


async def test_a_stop_string_is_not_looked_for_before_min_tokens(
    serve: Serve, engine: ScriptedEngine
) -> None:
    engine.says = lambda request: "ababab"
    _, answer = await (await serve(engine)).post(PATH, {**BODY, "stop": "a", "min_tokens": 2})
    assert answer["choices"][0]["text"] == "ab"


async def test_a_stop_token_is_not_part_of_the_text(serve: Serve, engine: ScriptedEngine) -> None:
    client = await serve(engine)
    body = {**BODY, "stop_token_ids": [ord("l")], "return_token_ids": True}
    _, answer = await client.post(PATH, body)
    _, with_it = await client.post(PATH, {**body, "include_stop_str_in_output": True})

    (choice,) = answer["choices"]
    assert (choice["text"], choice["token_ids"]) == ("he", [*b"hel"])
    assert choice["stop_reason"] == ord("l")
    assert with_it["choices"][0]["text"] == "hel"


async def test_several_choices_and_prompts(serve: Serve, engine: ScriptedEngine) -> None:
    engine.says = lambda request: bytes(request.prompt_token_ids).decode().upper()
    client = await serve(engine)
    body = {**BODY, "prompt": ["ab", "cd"], "n": 2, "seed": 3, "return_token_ids": True}
    _, answer = await client.post(PATH, body)
    stream = await client.stream(PATH, body)

    assert [choice["text"] for choice in answer["choices"]] == ["AB", "AB", "CD", "CD"]
    assert answer["usage"]["prompt_tokens"] == 4
    assert {request.seed for request in engine.received} == {3, 4}
    assert len({request.request_id for request in engine.received}) == 8
    for index, choice in enumerate(answer["choices"]):
        assert "".join(delta["text"] for delta in stream.deltas(index)) == choice["text"]


async def test_echo_and_logprobs(serve: Serve, engine: ScriptedEngine) -> None:
    client = await serve(engine)
    body = {**BODY, "echo": True, "logprobs": 1, "prompt_logprobs": 0}
    _, answer = await client.post(PATH, body)
    stream = await client.stream(PATH, body)

    (choice,) = answer["choices"]
    assert choice["text"] == "hi!hello"
    assert len(choice["prompt_logprobs"]) == 3
    assert choice["logprobs"]["text_offset"][:3] == [0, 1, 2]
    assert choice["logprobs"]["tokens"][:2] == ["h", "e"]
    assert "".join(delta["text"] for delta in stream.deltas()) == "hi!hello"


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"regex": "(yes|no)!{3}", "json": None}},
        {"guided_regex": "(yes|no)!{3}"},
        {"structured_outputs": {"choice": ["no!!!"]}},
        {"guided_choice": ["no!!!"]},
    ],
)
async def test_structured_outputs_force_the_text(
    serve: Serve, engine: ScriptedEngine, fields: Json
) -> None:
    _, answer = await (await serve(engine)).post(PATH, {**BODY, **fields})
    assert answer["choices"][0]["text"] == "no!!!"
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_a_rank_is_picked_by_header_or_in_turn(serve: Serve) -> None:
    ranks = [ScriptedEngine(lambda request: "a"), ScriptedEngine(lambda request: "b")]
    client = await serve(*ranks)

    async def text(**headers: str) -> str:
        _, answer = await client.post(PATH, BODY, **headers)
        return str(answer["choices"][0]["text"])

    assert [await text(X_data_parallel_rank="1") for _ in range(2)] == ["b", "b"]
    assert {await text(), await text()} == {"a", "b"}
    status, answer = await client.post(PATH, BODY, X_data_parallel_rank="2")
    assert (status, answer["error"]["param"]) == (400, "data_parallel_rank")


@pytest.mark.parametrize(
    ("body", "status", "param", "says"),
    [
        (b"{", 400, None, "not valid"),
        ({**BODY, "max_tokens": "9"}, 400, None, "$.max_tokens"),
        ({"model": MODEL}, 400, None, "prompt"),
        ({**BODY, "model": "other"}, 404, "model", "The model `other` does not exist."),
        ({**BODY, "prompt": []}, 400, "prompt", "empty"),
        ({**BODY, "prompt": ""}, 400, "prompt", "empty"),
        ({**BODY, "prompt": [1.5]}, 400, "prompt", "list of token ids"),
        ({**BODY, "prompt": [300]}, 400, "prompt", "below"),
        ({**BODY, "prompt": [-1]}, 400, "prompt", "below"),
        ({**BODY, "prompt": "x" * 1100}, 400, "input_tokens", "maximum context length"),
        ({**BODY, "max_tokens": 1022}, 400, "input_tokens", "maximum context length"),
        ({**BODY, "max_tokens": 0}, 400, "max_tokens", "at least 1"),
        ({**BODY, "min_tokens": 17}, 400, "min_tokens", "from 0 to 16"),
        ({**BODY, "n": 0}, 400, "n", "from 1"),
        ({**BODY, "stop": [""]}, 400, "stop", "empty"),
        ({**BODY, "temperature": -1}, 400, "temperature", "negative"),
        ({**BODY, "guided_regex": "(?=a)"}, 400, "structured_outputs", "assert"),
        ({**BODY, "structured_outputs": {"json": {}, "regex": 5}}, 400, "structured_outputs", ""),
        ({**BODY, "structured_outputs": {"grammar": "g"}}, 400, "structured_outputs", "only"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
async def test_what_can_not_be_served_is_said_in_vllms_shape(
    serve: Serve,
    engine: ScriptedEngine,
    body: Any,
    status: int,
    param: str,
    says: str,
    stream: bool,
) -> None:
    if not isinstance(body, bytes):
        body = {**body, "stream": stream}
    got, answer = await (await serve(engine)).post(PATH, body)
    assert got == status
    error = answer["error"]
    assert (error["code"], error["param"]) == (status, param)
    assert error["type"] == {400: "BadRequestError", 404: "NotFoundError"}[status]
    assert says in error["message"]
    assert engine.received == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_without_room_in_the_engine_is_refused_before_the_answer_begins(
    serve: Serve, engine: ScriptedEngine, stream: bool
) -> None:
    engine.room = 2
    status, answer = await (await serve(engine)).post(PATH, {**BODY, "stream": stream})
    assert status == 400
    assert "does not fit" in answer["error"]["message"]


async def test_an_engine_that_fails_is_an_error_of_the_server(
    serve: Serve, engine: ScriptedEngine
) -> None:
    engine.fails = True
    client = await serve(engine)
    status, answer = await client.post(PATH, BODY)
    assert (status, answer["error"]["code"]) == (500, 500)
    stream = await client.stream(PATH, BODY)
    assert stream.chunks[-1]["error"]["code"] == 500
    assert stream.done


@pytest.mark.parametrize("choices", [1, 2])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_aborts_its_requests(
    serve: Serve, engine: ScriptedEngine, stream: bool, choices: int
) -> None:
    client = await serve(engine)
    engine.gate.clear()
    body = json.dumps({**BODY, "n": choices, "stream": stream}).encode()
    asking = asyncio.ensure_future(client.session.post(client.base_url + PATH, data=body))
    await until(lambda: len(engine.received) == choices, "the engine has the requests")
    if stream:
        response = await asking
        await response.content.readline()
        response.close()
    else:
        asking.cancel()
    await until(lambda: len(engine.aborted) == choices, "the requests are aborted")
