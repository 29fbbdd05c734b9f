"""One leg's server: sends a request, reads its stream, keeps times."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from contraflow.bench.multiturn.history import Answer
from contraflow.router.report import HEADER, parse_header
from contraflow.runtime.clock import Clock
from contraflow.web import Origin, UpstreamClient, UpstreamError, UpstreamResponse

_OK = 200
_DONE = b"[DONE]"
_MOST_BYTES = 1 << 20
_SHOWN = 300
_SAID = ("content", "reasoning_content", "reasoning", "tool_calls")


class TurnError(Exception):
    """A request was refused, or its answer is not complete. ``str(error)`` says how."""


@dataclass(frozen=True, slots=True)
class Leg:
    """A name and a server. ``fresh_salt``: each request gets a ``cache_salt`` of its own, which
    keeps vLLM from finding anything in its prefix cache. ``conversation_id``: the body names the
    conversation, too, where vLLM's example proxy looks for it. ``primed``: before a turn from the
    second on its history is sent without what the turn adds, for one token that is not measured,
    so that the prefill engine's own cache has the last answer too."""

    name: str
    origin: Origin
    fresh_salt: bool = False
    conversation_id: bool = False
    primed: bool = False


@dataclass(slots=True)
class Reply:
    """What came back. Seconds from the request: to the first token, the last one, the end; None
    while there is none. Tokens as the usage tells, None if it does not."""

    text: str = ""
    token_ids: list[int] | None = None
    chunks: int = 0
    first: float | None = None
    last: float | None = None
    end: float = 0.0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    report: Mapping[str, str] = field(default_factory=dict)

    def answer(self) -> Answer:
        """For the history."""
        return Answer(self.text, self.token_ids)

    def take(self, event: Mapping[str, Any], seconds: float) -> None:
        """One event of the stream, read ``seconds`` after the request. Raises TurnError for one
        that carries an error."""
        if error := event.get("error"):
            raise TurnError(f"the stream ended with an error: {_short(json.dumps(error))}")
        for choice in event.get("choices") or ():
            ids = choice.get("token_ids")
            if ids is not None:
                self.token_ids = self.token_ids or []
                self.token_ids += ids
            delta = choice.get("delta") or {}
            text = choice.get("text") or delta.get("content") or ""
            self.text += text
            if text or ids or any(delta.get(name) for name in _SAID):
                self.chunks += 1
                self.first = seconds if self.first is None else self.first
                self.last = seconds
        if usage := event.get("usage"):
            self.prompt_tokens = usage.get("prompt_tokens", self.prompt_tokens)
            self.output_tokens = usage.get("completion_tokens", self.output_tokens)
            details = usage.get("prompt_tokens_details") or {}
            self.cached_tokens = details.get("cached_tokens", self.cached_tokens)


@dataclass(frozen=True, slots=True)
class Model:
    """What a server calls its model, and the most tokens of prompt and answer, if it tells."""

    name: str
    most_tokens: int | None = None


class Endpoint:
    """Requests to one leg. ``timeout`` is the longest silence, in seconds."""

    def __init__(
        self, leg: Leg, client: UpstreamClient, clock: Clock, timeout: float, api_key: str = ""
    ) -> None:
        self.leg = leg
        self._client, self._clock, self._timeout = client, clock, timeout
        self._headers = [(b"content-type", b"application/json")]
        if api_key:
            self._headers.append((b"authorization", b"Bearer " + api_key.encode()))

    async def model(self) -> Model:
        """The first model that the server lists. Raises TurnError."""
        try:
            async with self._request("GET", "/v1/models") as response:
                await self._must_be_good(response)
                listed = json.loads(await response.read(_MOST_BYTES))["data"]
            return Model(listed[0]["id"], listed[0].get("max_model_len"))
        except UpstreamError as error:
            raise TurnError(str(error)) from None
        except (ValueError, LookupError, TypeError):
            raise TurnError(f"{self.leg.origin}/v1/models lists no model") from None

    async def send(self, path: str, body: Mapping[str, Any], session: str) -> Reply:
        """One streamed turn, to its end. Raises TurnError."""
        payload = msgspec.json.encode(body)
        reply = Reply()
        begun = self._clock.now()
        try:
            async with self._request("POST", path, payload, session) as response:
                await self._must_be_good(response)
                reply.report = parse_header((response.header(HEADER) or b"").decode("latin-1"))
                async for event, arrived in _events(response, self._clock):
                    reply.take(event, arrived - begun)
        except UpstreamError as error:
            raise TurnError(str(error)) from None
        except (ValueError, AttributeError, TypeError) as error:
            raise TurnError(f"the stream is not what the API promises: {error}") from None
        reply.end = self._clock.now() - begun
        if reply.first is None:
            raise TurnError("the answer has not a single token")
        return reply

    def _request(self, method: str, path: str, body: bytes = b"", session: str = "") -> Any:
        told = [(b"x-session-id", session.encode())] if session else []
        return self._client.request(
            method, self.leg.origin, path, headers=[*self._headers, *told], body=body,
            header_timeout=self._timeout, chunk_timeout=self._timeout,
        )  # fmt: skip

    async def _must_be_good(self, response: UpstreamResponse) -> None:
        if response.status != _OK:
            text = (await response.read(_MOST_BYTES)).decode(errors="replace")
            raise TurnError(f"{self.leg.origin} answered {response.status}: {_short(text)}")


async def _events(
    response: UpstreamResponse, clock: Clock
) -> AsyncIterator[tuple[Mapping[str, Any], float]]:
    """The events of a stream, and when each arrived: what decoding takes is not the server's.

    Raises TurnError if it ends without ``[DONE]``.
    """
    rest, done = b"", False
    async for piece in response.iter_raw():
        arrived = clock.now()
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            data = _data(line)
            done = done or data == _DONE
            if data and not done:
                yield msgspec.json.decode(data), arrived
    if not (done or _data(rest) == _DONE):
        raise TurnError("the stream ended without [DONE]")


def _data(line: bytes) -> bytes:
    return line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
