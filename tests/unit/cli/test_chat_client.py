"""Putting a streamed answer together."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from contraflow.cli.demo.chat_client import Answer, TurnFailed, stream_chat

ROLE = {"choices": [{"delta": {"role": "assistant", "content": ""}}], "prompt_token_ids": [5, 6]}


def chunk(token: int, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"delta": delta, "finish_reason": finish, "token_ids": [token]}]}


def call(**fields: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, **fields}]}


def events(*chunks: object) -> bytes:
    return b"".join(b"data: " + json.dumps(item).encode() + b"\n\n" for item in chunks)


DONE = b"data: [DONE]\n\n"


@contextmanager
def serving(body: bytes, status: int = 200) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server with one answer; gives its base URL and the requests that it gets."""
    requests: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            requests.append({"path": self.path, **json.loads(self.rfile.read(length))})
            self.send_response(status)
            self.send_header("x-contraflow", "decision=PULL; pulled=7")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_text_ids_times_and_report() -> None:
    clock = iter([10.0, 10.25])
    body = events(ROLE, chunk(1, content="a"), chunk(2, content="b"), chunk(9, "stop")) + DONE
    with serving(b": comment\n\n" + body) as (url, requests):
        answer = stream_chat(url, {"model": "m"}, now=lambda: next(clock))
    assert requests == [{"path": "/v1/chat/completions", "model": "m", "stream": True}]
    assert answer == Answer(
        prompt_ids=[5, 6],
        output_ids=[1, 2, 9],
        content="ab",
        finish_reason="stop",
        ttft=0.25,
        report="decision=PULL; pulled=7",
    )
    assert answer.message() == {"role": "assistant", "content": "ab"}


def test_tool_calls_come_in_pieces_and_no_token_is_lost() -> None:
    body = events(
        ROLE,
        chunk(1),
        chunk(2, **call(id="call-1", type="function", function={"name": "read_log"})),
        chunk(3, **call(function={"arguments": '{"a"'})),
        chunk(4, **call(function={"arguments": ": 1}"})),
        chunk(9, "tool_calls"),
    )
    with serving(body + DONE) as (url, _):
        answer = stream_chat(url, {})
    assert answer.output_ids == [1, 2, 3, 4, 9]
    assert answer.message() == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call-1",
                "type": "function",
                "function": {"name": "read_log", "arguments": '{"a": 1}'},
            }
        ],
    }


@pytest.mark.parametrize(
    ("status", "body", "quoted"),
    [
        (503, b'{"error": {"message": "no engine"}}', "503.*no engine"),
        (200, events(ROLE, {"error": {"message": "gone"}}) + DONE, "gone"),
        (200, events(ROLE, chunk(1, content="a")), r"without \[DONE\]"),
    ],
)
def test_what_is_no_whole_answer_fails_the_turn(status: int, body: bytes, quoted: str) -> None:
    with serving(body, status) as (url, _), pytest.raises(TurnFailed, match=quoted):
        stream_chat(url, {})


def test_nobody_there() -> None:
    with serving(b"") as (url, _):
        pass
    with pytest.raises(TurnFailed, match="refused"):
        stream_chat(url, {})
