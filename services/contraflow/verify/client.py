"""One turn as its client sees it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import msgspec

from contraflow.router.report import HEADER, parse_header
from contraflow.verify.http import Answer
from contraflow.verify.legs import TRACE, Trace
from contraflow.verify.parts import RouterProcess
from contraflow.web import ApiError, Request
from contraflow.web.upstream_errors import UpstreamReset

_PATIENCE_SECONDS = 900.0
_EVENT = b"data: "


@dataclass(slots=True)
class Outcome:
    """``status`` 0: the client has left or its router died. ``whole``: the answer came to its
    end. ``ids`` are the tokens generated, ``text`` what they say."""

    status: int = 0
    whole: bool = False
    left: bool = False
    hung: bool = False
    ids: list[int] = field(default_factory=list)
    text: str = ""
    report: dict[str, str] = field(default_factory=dict)
    error: str = ""
    prompt: list[int] = field(default_factory=list)
    """Token ids that the decode engine says it was given, if it does."""
    leaked: bool = False
    """Transfer parameters were in the answer."""
    trace: Trace = field(default_factory=lambda: Trace(tuple))
    """What its router sent to engines for it, where that can be seen."""


async def ask(
    router: RouterProcess, path: str, body: dict[str, Any], key: str, patience: float | None
) -> Outcome:
    """Send a request; leave after ``patience`` seconds, if that is not None."""
    headers = [(b"authorization", f"Bearer {key}".encode())]
    request = Request("POST", path, "", headers, body=msgspec.json.encode(body))
    answer, outcome = Answer(), Outcome(trace=Trace(router.replica.known))
    task = router.part.spawn(_serve(router, request, answer, outcome.trace))
    task.add_done_callback(lambda _: answer.fail())
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS if patience is None else patience):
            await _read(answer, bool(body.get("stream")), outcome)
    except TimeoutError:
        outcome.left, outcome.hung = patience is not None, patience is None
    except UpstreamReset:
        outcome.error = "the connection broke"
    except (msgspec.DecodeError, LookupError) as error:
        outcome.error = f"the answer can not be read: {error!r}"
    finally:
        request.mark_disconnected()
        task.cancel()
    return outcome


async def _serve(router: RouterProcess, request: Request, answer: Answer, trace: Trace) -> None:
    TRACE.set(trace)
    try:
        await router.app.routes.handle(request, answer)  # type: ignore[arg-type]
    except ApiError as error:
        if not answer.started:
            answer.send_json(error.status, error.body(), error.headers)


async def _read(answer: Answer, stream: bool, outcome: Outcome) -> None:
    await answer.wait_for_headers(_PATIENCE_SECONDS)
    outcome.status = answer.status
    outcome.report = parse_header((answer.header(HEADER) or b"").decode())
    take_body(outcome, await answer.read(1 << 24), stream)


def take_body(outcome: Outcome, body: bytes, stream: bool) -> None:
    """What the body of an answer says, which may be only the beginning of a stream. Raises
    msgspec.DecodeError or LookupError for one that can not be read."""
    if outcome.status != 200:
        outcome.whole = True
        outcome.error = body.decode()
        return
    if not stream:
        _take(outcome, msgspec.json.decode(body))
        outcome.whole = True
        return
    for line in body.splitlines():
        if line == b"data: [DONE]":
            outcome.whole = not outcome.error
        elif line.startswith(_EVENT):
            event = msgspec.json.decode(line.removeprefix(_EVENT))
            if "error" in event:
                outcome.error = str(event["error"])
            else:
                _take(outcome, event)


def _take(outcome: Outcome, answer: dict[str, Any]) -> None:
    if "kv_transfer_params" in answer:
        outcome.leaked = True
    for choice in answer["choices"]:
        outcome.prompt = outcome.prompt or choice.get("prompt_token_ids") or []
        outcome.ids += choice.get("token_ids") or []
        said = choice.get("message") or choice.get("delta") or choice
        outcome.text += said.get("content") or said.get("text") or ""
