"""Whether a stream has said anything yet, by its first events as vLLM writes them."""

from __future__ import annotations

import pytest

from contraflow.router.opening import Opening, opening_of

ROLE = (
    b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":'
    b'{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
    b'"prompt_token_ids":[1,2]}\n\n'
)
START = b'event: message_start\ndata: {"type":"message_start","message":{"usage":{}}}\n\n'
ERROR = b'data: {"error":{"message":"m","type":"InternalServerError","param":null,"code":500}}\n\n'
DONE = b"data: [DONE]\n\n"
OF_MESSAGES = (
    b"event: error\ndata: "
    b'{"type":"error","error":{"type":"internal_error","message":"Internal server error"}}\n\n'
)


@pytest.mark.parametrize("events", [ROLE, ROLE * 2, START, b": ping\n\n", b""])
def test_nothing_is_said_yet(events: bytes) -> None:
    assert opening_of(events) is Opening.SILENT


@pytest.mark.parametrize(
    "events", [ERROR + DONE, ROLE + ERROR, ERROR.replace(b"500", b"503"), START + OF_MESSAGES]
)
def test_the_engine_has_failed(events: bytes) -> None:
    assert opening_of(events) is Opening.FAILED


@pytest.mark.parametrize(
    "events",
    [
        ERROR.replace(b"500", b"400"),
        ERROR.replace(b"500", b'"500"'),
        ROLE.replace(b'"content":""', b'"content":"a"') + ERROR,
        ROLE.replace(b'"content":""', b'"reasoning":"a"'),
        ROLE.replace(b'"content":""', b'"tool_calls":[{"index":0}]'),
        ROLE.replace(b'"finish_reason":null', b'"finish_reason":"stop"'),
        b'data: {"choices":[{"index":0,"text":"","finish_reason":null}]}\n\n',
        b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n',
        b'data: {"type":"content_block_start","index":0}\n\n',
        b"data: {}\n\n",
        b"data: 1\n\n",
        b"data: {\n\n",
        b"data: " + b"[" * 100_000 + b"\n\n",
        b'data: {"choices":[{"delta":[]}]}\n\n',
        DONE,
    ],
)
def test_anything_else_is_for_the_client(events: bytes) -> None:
    assert opening_of(events) is Opening.SPOKEN
