"""One choice of an answer: tokens from the engine, and the text they make."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

from contraflow.sim.api import Engine, Params, SimOutput, SimRequest
from contraflow.sim.text import TextStream
from contraflow.web import ApiError

_FAILED = "The engine failed to serve the request."


@dataclass(frozen=True, slots=True)
class Piece:
    """What a step added. ``text`` may lag behind the tokens."""

    token_ids: list[int]
    text: str
    finish_reason: str | None


class Choice:
    """A choice, growing. ``index`` is its place in the answer, ``prompt`` that of its prompt."""

    def __init__(
        self,
        request: SimRequest,
        *,
        index: int = 0,
        prompt: int = 0,
        stop: Sequence[str] = (),
        include_stop: bool = False,
    ) -> None:
        self.request = request
        self.index = index
        self.prompt = prompt
        self.token_ids: list[int] = []
        self.text = ""
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.kv_transfer_params: Params | None = None
        self.num_cached_tokens = 0
        self._stream = TextStream()
        self._stop = _StopStrings(stop, include_stop)
        self._include_stop = include_stop

    def take(self, output: SimOutput) -> Piece:
        """Add a step. Raises ApiError if it is the end of a failed request."""
        if output.finish_reason == "error":  # as when its KV could not be loaded
            raise ApiError(500, _FAILED)
        ids, reason = output.token_ids, output.finish_reason
        self.token_ids += ids
        self.num_cached_tokens = output.num_cached_tokens
        shown = ids
        if reason == "stop" and ids and ids[-1] in self.request.stop_token_ids:
            self.stop_reason = ids[-1]
            shown = ids if self._include_stop else ids[:-1]
        text = self._stream.feed(shown, final=reason is not None)
        searched = len(self.token_ids) > self.request.min_tokens
        text, stop = self._stop.feed(text, searched=searched, final=reason is not None)
        if stop is not None:
            # vLLM aborts the request in its engine, so that no blocks are kept for it.
            reason, self.stop_reason = "stop", stop
        else:
            self.kv_transfer_params = output.kv_transfer_params
        self.text += text
        self.finish_reason = reason
        return Piece(ids, text, reason)


Emit = Callable[[Choice, Piece], Awaitable[None]]


class Generation:
    """Choices that an engine generates side by side.

    Raises ApiError for a prompt that the engine has no room for.
    """

    def __init__(self, engine: Engine, choices: Sequence[Choice]) -> None:
        try:
            self._outputs = [
                cast(AsyncGenerator[SimOutput, None], engine.generate(choice.request))
                for choice in choices
            ]
        except ValueError as error:
            raise ApiError(400, str(error)) from error
        self._choices = choices

    async def run(self, emit: Emit) -> None:
        """Generate all choices to their ends; ``emit`` gets every piece.

        Aborts them all when it is cancelled or one fails. Raises ApiError if the engine fails.
        """
        pairs = zip(self._choices, self._outputs, strict=True)
        tasks = [asyncio.ensure_future(_run(choice, outputs, emit)) for choice, outputs in pairs]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _run(choice: Choice, outputs: AsyncGenerator[SimOutput, None], emit: Emit) -> None:
    async with aclosing(outputs):
        async for output in outputs:
            piece = choice.take(output)
            await emit(choice, piece)
            if piece.finish_reason is not None:
                return
    raise ApiError(500, _FAILED)


class _StopStrings:
    """Holds back as much text as may become a stop string."""

    def __init__(self, stop: Sequence[str], include: bool) -> None:
        self._stop = stop
        self._include = include
        self._longest = max(map(len, stop), default=0)
        self._held = ""

    def feed(self, text: str, *, searched: bool, final: bool) -> tuple[str, str | None]:
        """Text that is safe to show, and the stop string that ends it, if one does."""
        if not self._stop:
            return text, None
        self._held += text
        if searched:
            found = [(at, s) for s in self._stop if (at := self._held.find(s)) >= 0]
            if found:
                at, stop = min(found)
                return self._held[: at + len(stop) * self._include], stop
        shown = len(self._held) if final else max(0, len(self._held) - self._longest + 1)
        text, self._held = self._held[:shown], self._held[shown:]
        return text, None
