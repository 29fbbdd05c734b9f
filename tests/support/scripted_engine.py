"""Satisfies ``contraflow.sim.api.Engine``: says what it is told, token by token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from contraflow.sim.api import Params, SimCounters, SimOutput, SimRequest
from contraflow.sim.vocab import EOS


class ScriptedEngine:
    """``says`` makes the text of an answer; it ends with EOS where ``max_tokens`` allows, or
    where the request's mask ends it: then the lowest allowed token follows each other."""

    def __init__(self, says: Callable[[SimRequest], str] = lambda request: "hello") -> None:
        self.says = says
        self.counters = SimCounters()
        self.received: list[SimRequest] = []
        self.aborted: list[str] = []
        self.params: Params | None = {"remote_engine_id": "scripted", "remote_num_tokens": 7}
        self.room = 10_000
        self.fails = False
        self.cached = 0
        self.gate = asyncio.Event()
        """Holds answers back after their first token while it is not set."""
        self.gate.set()

    def generate(self, request: SimRequest) -> AsyncIterator[SimOutput]:
        if len(request.prompt_token_ids) > self.room:
            raise ValueError("the prompt does not fit the KV cache")
        return self._outputs(request)

    async def _outputs(self, request: SimRequest) -> AsyncIterator[SimOutput]:
        self.received.append(request)
        ids = self._ids(request)
        try:
            for at, token in enumerate(ids, 1):
                reason = None
                if at == len(ids):
                    ended = token == EOS or request.mask or token in request.stop_token_ids
                    reason = "error" if self.fails else "stop" if ended else "length"
                params = self.params if reason else None
                yield SimOutput([token], reason, params, self.cached)
                await asyncio.sleep(0)
                await self.gate.wait()
        except (GeneratorExit, asyncio.CancelledError):
            if at < len(ids):
                self.aborted.append(request.request_id)
            raise

    def _ids(self, request: SimRequest) -> list[int]:
        if request.mask is None:
            ids = [*self.says(request).encode(), EOS]
        else:
            ids = []
            while (allowed := request.mask(list(ids))) and EOS not in allowed:
                ids.append(min(allowed))
        for at, token in enumerate(ids, 1):
            if token in request.stop_token_ids:
                ids = ids[:at]
                break
        return ids[: request.max_tokens]

    async def start(self) -> None:
        """Nothing to start."""

    async def close(self) -> None:
        """Nothing to close."""
