"""A streamed answer, token by token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from contraflow.cli.deployment import MODEL_NAME, RouterHandle
from contraflow.router.report import parse_header

_DATA, _DONE = b"data:", b"[DONE]"


@dataclass
class Streamed:
    """What has come of it up to now. ``complete``: the end too, and not just its last byte."""

    status: int = 0
    ids: list[int] = field(default_factory=list)
    finish_reason: str = ""
    complete: bool = False
    cut: bool = False
    report: Mapping[str, str] = field(default_factory=dict)
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, line: bytes) -> None:
        """A line of the stream."""
        data = line.removeprefix(_DATA).strip()
        if not line.startswith(_DATA) or data == _DONE:
            self.complete = self.complete or data == _DONE
            return
        event: dict[str, Any] = json.loads(data)
        for choice in event.get("choices", ()):
            self.ids += choice.get("token_ids") or ()
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if self.ids:
            self.begun.set()


@asynccontextmanager
async def streamed(
    router: RouterHandle, prompt: Sequence[int], session: str, tokens: int
) -> AsyncIterator[tuple[Streamed, asyncio.Task[Streamed]]]:
    """A streamed turn: what has come, and a task that ends with it, however it ends."""
    answer = Streamed()
    task = asyncio.create_task(_read(answer, router, prompt, session, tokens))
    try:
        yield answer, task
    finally:
        task.cancel()


async def _read(
    answer: Streamed, router: RouterHandle, prompt: Sequence[int], session: str, tokens: int
) -> Streamed:
    body = {
        "model": MODEL_NAME, "temperature": 0, "return_token_ids": True, "ignore_eos": True,
        "prompt": list(prompt), "max_tokens": tokens, "session_id": session, "stream": True,
    }  # fmt: skip
    timeout = aiohttp.ClientTimeout(total=300)
    async with (
        aiohttp.ClientSession(timeout=timeout, read_bufsize=1 << 20) as http,
        http.post(f"{router.http}/v1/completions", json=body) as response,
    ):
        answer.status = response.status
        answer.report = parse_header(response.headers.get("x-contraflow", ""))
        try:
            async for line in response.content:
                answer.take(line)
        except aiohttp.ClientPayloadError:
            answer.cut = True
    return answer
