"""Time that jumps."""

from __future__ import annotations

import asyncio

import pytest

from contraflow.verify.loop import Stuck, run


async def now() -> float:
    return asyncio.get_running_loop().time()


def test_time_passes_as_fast_as_nothing_happens() -> None:
    async def main() -> tuple[list[float], float]:
        woken: list[float] = []

        async def sleeper(seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append(await now())

        await asyncio.gather(sleeper(1e6), sleeper(0.5), sleeper(20.0))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await asyncio.Event().wait()
        return woken, await now()

    woken, ended = run(main())
    assert woken == pytest.approx([0.5, 20.0, 1e6])
    assert ended == pytest.approx(1e6 + 5.0)


def test_what_never_comes_is_told() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck, match="never comes"):
        run(main())


def test_what_never_rests_is_told() -> None:
    async def main() -> None:
        def again() -> None:
            loop.call_soon(again)

        loop = asyncio.get_running_loop()
        again()
        await asyncio.Event().wait()

    with pytest.raises(Stuck, match="without end"):
        run(main())
