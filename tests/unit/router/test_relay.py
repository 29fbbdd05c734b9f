"""What of a stream reaches the client, piece by piece as it comes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from contraflow.router.relay import Unanswered, relay
from contraflow.web import Origin, UpstreamReset, UpstreamResponse

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
ERROR = b'data: {"error":{"message":"m","type":"InternalServerError","code":500}}\n\n'
DONE = b"data: [DONE]\n\n"
ABORT = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}\n\n'
RESET = UpstreamReset(Origin.parse("http://d1:1"), "cut", bytes_sent=True, response_started=True)


class Response:
    """A stream in pieces; the last may be an error."""

    status = 200
    headers = ((b"content-type", b"text/event-stream"),)

    def __init__(self, *pieces: bytes | Exception) -> None:
        self._pieces = pieces

    def header(self, name: bytes) -> bytes | None:
        return dict(self.headers).get(name)

    async def iter_raw(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece


class Client:
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[str | bytes] = []
        self.started = False
        self.status = 0

    def start(self, status: int, headers: Any = ()) -> None:
        self.started, self.status = True, status
        self.got.append("start")

    async def write(self, data: bytes) -> None:
        self.got.append(data)

    def finish(self) -> None:
        self.got.append("finish")

    def respond(self, status: int, headers: Any = (), body: bytes = b"") -> None:
        raise AssertionError("a stream is not answered whole")

    def abort(self) -> None:
        raise AssertionError("that is for the caller")


async def passed(*pieces: bytes | Exception, keep_failure: bool = True) -> list[str | bytes]:
    client = Client()
    marks = client.got
    response = cast("UpstreamResponse", Response(*pieces))
    try:
        await relay(
            response, client, (), lambda: marks.append("first"), lambda: marks.append("end"),
            keep_failure=keep_failure,
        )  # fmt: skip
    except (Unanswered, UpstreamReset) as error:
        marks.append(type(error).__name__)
    return marks


async def test_a_role_is_held_until_something_is_said_and_then_passed_on_with_it() -> None:
    assert await passed(ROLE, ROLE, TEXT, TEXT, DONE) == [
        "start", "first", ROLE + ROLE + TEXT, TEXT, "end", DONE, "finish",
    ]  # fmt: skip


@pytest.mark.parametrize("keep_failure", [True, False])
@pytest.mark.parametrize("pieces", [(ABORT, DONE), (ROLE, ABORT), (ROLE, ROLE + ABORT)])
async def test_an_engine_that_is_being_stopped_leaves_the_client_untouched(
    pieces: Any, keep_failure: bool
) -> None:
    assert await passed(*pieces, keep_failure=keep_failure) == ["Aborted"]


async def test_a_leg_that_breaks_before_it_says_anything_is_not_begun_for_the_client() -> None:
    assert await passed(ROLE, RESET, keep_failure=False) == ["UpstreamReset"]


@pytest.mark.parametrize("pieces", [(ERROR, DONE), (ROLE, ERROR), (ROLE, RESET), (TEXT[:9], RESET)])
async def test_a_failure_before_anything_is_said_leaves_the_client_untouched(pieces: Any) -> None:
    assert await passed(*pieces) == ["Unanswered"]


@pytest.mark.parametrize("pieces", [(ROLE, TEXT, RESET), (TEXT, RESET)])
async def test_a_failure_later_on_is_the_clients_to_see(pieces: Any) -> None:
    assert await passed(*pieces) == [
        "start", "first", b"".join(pieces[:-1]), "UpstreamReset",
    ]  # fmt: skip


@pytest.mark.parametrize("error", [ERROR, b'event: error\ndata: {"type":"error"}\n\n'])
async def test_an_answer_with_an_error_in_it_has_not_ended_well(error: bytes) -> None:
    assert await passed(TEXT, error, DONE) == ["start", "first", TEXT, error, DONE, "finish"]
    assert await passed(TEXT, error) == ["start", "first", TEXT, error, "finish"]
    said = TEXT.replace(b'"a"', b'"data: {\\"error\\" event: error\\n"')
    assert await passed(said, DONE) == ["start", "first", said, "end", DONE, "finish"]


async def test_a_failure_at_once_is_the_clients_where_the_leg_is_not_sent_again() -> None:
    assert await passed(ERROR, DONE, keep_failure=False) == [
        "start", "first", ERROR, DONE, "finish",
    ]  # fmt: skip


async def test_a_stream_that_ends_without_saying_anything() -> None:
    assert await passed(ROLE) == ["start", ROLE, "end", "finish"]
    assert await passed() == ["start", b"", "end", "finish"]
