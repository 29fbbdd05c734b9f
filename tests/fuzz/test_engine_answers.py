"""What engines may send, parameters and streams of any kind: the client gets what the engine
said, or a clear failure, and nothing is pulled with what can not be read."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contraflow.core.instructions import Pull
from contraflow.core.transfer_params import REMOTE_KEYS
from tests.fuzz.front_door import DONE, GOOD, PARAMS, SPOKEN, FrontDoor
from tests.fuzz.json_texts import broken, changed, nests, odd, one_changed, text
from tests.fuzz.stage import Stage
from tests.support.fake_engine import TIP
from tests.support.raw_engine import Sent, stream, whole

LONGEST_HEADER = 8190
"""Of a longer one some clients are afraid."""
REPORT = Pull("PULLED", "d1", 299, 299, 0, 299, 1, 4096, 3, 0.01, 0.02)
OURS = {"tip": TIP.to_json(), "pull": REPORT.to_json()}
ANSWER = {
    "id": "cmpl-1",
    "choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 300},
    "kv_transfer_params": {**PARAMS, "contraflow": OURS},
}
names = st.sampled_from(
    ["kv_transfer_params", "contraflow", "pull", "tip", "outcome", "bytes", "remote_block_ids",
     "transfer_seconds", "_private", "error", "choices"]
)  # fmt: skip
paths = st.sampled_from(["/v1/chat/completions", "/v1/completions", "/v1/messages"])


def within(text: str) -> str:
    """An answer with these parameters."""
    return f'{{"choices": [], "kv_transfer_params": {text}}}'


def saying(text: str) -> str:
    """An answer with this in place of what our connector says."""
    return within(f'{json.dumps(PARAMS)[:-1]}, "contraflow": {text}}}')


prefill_answers = broken(
    changed(ANSWER, names)
    | one_changed(PARAMS).map(within)
    | changed(OURS, names).map(saying)
    | odd
)


@given(prefill_answers, st.sampled_from([200] * 20 + [204, 304, 400, 404, 500, 599, 999]))
def test_whatever_prefill_returns_decode_answers(
    door: Stage[FrontDoor], answer: bytes, status: int
) -> None:
    here = door.world

    async def example() -> None:
        here.reset()
        here.prefill.answer = lambda sent: whole(answer, status)
        reply = await here.post("/v1/chat/completions", json.dumps(GOOD).encode())
        if status == 200:
            assert reply.status == 200
            assert reply.body == SPOKEN + DONE
            assert len(reply.headers["x-contraflow"]) < LONGEST_HEADER
            params = here.decode.sent[-1].params
            assert params["contraflow"]["turn_id"]
            assert not any(key.startswith("_") for key in params)
            assert not _offers_a_pull(params) or _is_readable(params)
        else:
            assert reply.status in (status, 502)
        await here.nothing_left()

    door.run(example())


def _offers_a_pull(params: dict[str, Any]) -> bool:
    return all(params.get(key) is not None for key in REMOTE_KEYS)


def _is_readable(params: dict[str, Any]) -> bool:
    """As vLLM needs it to read."""
    blocks, port = params["remote_block_ids"], params["remote_port"]
    return (
        all(isinstance(params[key], str) for key in REMOTE_KEYS[1:4])
        and type(port) is int
        and 0 < port < 2**16
        and isinstance(blocks, list)
        and all(isinstance(group, list) for group in blocks)
        and all(type(block) is int and block >= 0 for group in blocks for block in group)
    )


events = st.one_of(
    changed(ANSWER, names).map(lambda said: f"data: {said}\n\n".encode()),
    odd.map(lambda said: f"data: {said}\n\n".encode("utf-8", "surrogatepass")),
    text.map(lambda said: f": {said}\n\n".encode()),
    st.sampled_from(
        [SPOKEN, DONE, b"\n\n", b"\r\n\r\n", b"data:\n\n", b"event: error\ndata: {}\n\n",
         b'data: {"error": {"code": 500, "message": "x"}}\n\n', b"data: [DONE]\r\n\r\n", b"data",
         b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n', b"id: 1\nretry: x\n\n"]
    ),
    st.binary(max_size=20),
)  # fmt: skip


@given(st.lists(events, max_size=6), paths, st.booleans())
def test_a_stream_passes_without_parameters_or_is_cut(
    door: Stage[FrontDoor], said: list[bytes], path: str, cut: bool
) -> None:
    here = door.world
    body = json.dumps({**GOOD, "max_tokens": 5}).encode()
    data = stream(*said)

    async def example() -> None:
        here.reset()
        here.decode.cuts = cut
        here.decode.answer = lambda sent: data[:-5] if cut else data
        reply = await here.post(path, body)
        if reply.status == 200:
            assert not any(map(_tells_parameters, reply.body.split(b"\n\n")[:-1]))
            if b"kv_transfer_params" not in b"".join(said) and not cut:
                assert b"".join(said).startswith(reply.body)
        else:
            assert reply.status == 502
            assert cut
        await here.nothing_left()

    door.run(example())


def _tells_parameters(event: bytes) -> bool:
    lines = [line[5:] for line in event.splitlines() if line.startswith(b"data:")]
    try:
        value = json.loads(b"\n".join(lines))
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "kv_transfer_params" in value


def _same(answer: bytes, sent: Sent) -> bytes:
    return answer


calls = st.builds(
    lambda arguments: {"index": 0, "id": "c", "function": {"name": "f", "arguments": arguments}},
    odd | text | nests,
)


@given(calls)
def test_any_arguments_of_a_tool_call_pass(door: Stage[FrontDoor], call: dict[str, Any]) -> None:
    """Streamed, whole, and sent back by the client, in a conversation without an id."""
    here = door.world
    event = {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}
    streamed = b"data: " + json.dumps(event).encode() + b"\n\n"
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    history = [{"role": "user", "content": "hi"}, message, {"role": "user", "content": "go on"}]

    async def example() -> None:
        here.reset()
        for streams in (True, False):
            answer = (
                stream(streamed, DONE) if streams else whole({"choices": [{"message": message}]})
            )
            here.decode.answer = partial(_same, answer)
            body = json.dumps({"model": "tiny", "messages": history, "stream": streams})
            reply = await here.post("/v1/chat/completions", body.encode())
            assert reply.status == 200
            assert reply.complete
            if streams:
                assert reply.body == streamed + DONE
        await here.nothing_left()

    door.run(example())


heads = st.lists(
    st.sampled_from(
        [b"Content-Type: text/event-stream", b"Content-Type: application/json", b"X: \x01",
         b"Content-Length: 2", b"Content-Length: 9", b"Transfer-Encoding: chunked", b"X: \xff",
         b"Connection: close", b"Content-Encoding: gzip", b"Set-Cookie: a\x00b", b"X : y",
         b"Transfer-Encoding: gzip", b"X-Contraflow: forged", b"Upgrade: h2c", b"Date: never",
         b"X-Big: " + b"x" * 70_000, b"Content-Length: x", b"Connection: upgrade", b""]
    ),
    max_size=4,
)  # fmt: skip
lines = st.sampled_from(
    [b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK", b"HTTP/1.1 100 Continue",
     b"HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: h2c", b"HTTP/1.1 204 None",
     b"HTTP/1.1 304 No", b"HTTP/1.1 000 X",
     b"HTTP/1.1 404 No", b"HTTP/1.1 200", b"HTTP/2.0 200 OK", b"ICY 200 OK", b"",
     b"HTTP/1.1 1000 X", b"HTTP/1.1 600 X", b"HTTP/1.1 500 X", b"HTTP/1.1 200 \xff"]
)  # fmt: skip
rests = st.sampled_from([b"", b"{}", b"2\r\n{}\r\n0\r\n\r\n", b"{}{}", b"2\r\n{}\r\nX", b"zz\r\n"])


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    data = b"\r\n".join([draw(lines), *draw(heads), b"", b""]) + draw(rests)
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=3)) + data[at + draw(st.integers(0, 3)) :]
    return data


@given(answers(), st.booleans())
def test_any_bytes_of_an_engine_are_an_answer_or_a_502(
    door: Stage[FrontDoor], answer: bytes, at_prefill: bool
) -> None:
    here = door.world
    engine = here.prefill if at_prefill else here.decode

    async def example() -> None:
        here.reset()
        engine.cuts = True
        engine.answer = lambda sent: answer
        reply = await here.post("/v1/chat/completions", json.dumps(GOOD).encode())
        sent = b" %03d" % reply.status in answer or (at_prefill and reply.status == 200)
        assert sent or reply.status == 502, reply
        await here.nothing_left()

    door.run(example())


def test_a_plain_turn_goes_well_after_all_that(door: Stage[FrontDoor]) -> None:
    door.run(door.world.still_serves())
