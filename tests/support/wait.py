"""Waiting for a condition, with one overall deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

DEADLINE_SECONDS = 30.0


async def until(condition: Callable[[], bool], what: str, within: float = DEADLINE_SECONDS) -> None:
    """Poll ``condition``; AssertionError naming ``what`` if it does not hold in time."""
    try:
        async with asyncio.timeout(within):
            while not condition():  # noqa: ASYNC110 -- conditions of other processes
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {within} s: {what}") from None
