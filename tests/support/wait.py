"""Waiting for a condition, with one overall deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

DEADLINE_SECONDS = 30.0
T = TypeVar("T")


async def until(condition: Callable[[], bool], what: str, within: float = DEADLINE_SECONDS) -> None:
    """Poll ``condition``; AssertionError naming ``what`` if it does not hold in time."""
    try:
        async with asyncio.timeout(within):
            while not condition():  # noqa: ASYNC110 -- conditions of other processes
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {within} s: {what}") from None


async def until_good(
    read: Callable[[], Awaitable[T]], good: Callable[[T], bool], within: float | None = None
) -> T:
    """What ``read`` returns, once it is ``good``; AssertionError with the last one if never."""
    value = await read()
    try:
        async with asyncio.timeout(within or DEADLINE_SECONDS):
            while not good(value):
                await asyncio.sleep(0.05)
                value = await read()
    except TimeoutError:
        raise AssertionError(f"still {value!r}") from None
    return value
