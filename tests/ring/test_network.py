"""The network of the ring: hosts that reach each other, cuts that are felt, nothing left."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE

import pytest

from tests.ring.network import Network
from tests.support.wait import until, until_good

pytestmark = [pytest.mark.integration, pytest.mark.root]

_HOLDS_ONE = """
import time
from tests.ring.network import Network
with Network(["a", "b"]) as network:
    print(network.namespace("a"), flush=True)
    time.sleep(600)
"""


async def reaches(network: Network, host: str, address: tuple[str, int]) -> bool:
    """Whether a connection is made, or at least refused, within a second."""
    with network.socket(host, socket.AF_INET, socket.SOCK_STREAM) as there:
        there.setblocking(False)
        try:
            async with asyncio.timeout(1):
                await asyncio.get_running_loop().sock_connect(there, address)
        except TimeoutError:
            return False
    return True


async def test_a_cut_is_felt_by_those_that_it_is_between() -> None:
    ours = socket.if_nameindex()
    with Network(["a", "b", "c"], [("part-of-b", "b")]) as network:
        places = {}
        for name, host in (("a", "a"), ("b", "b"), ("part-of-b", "b"), ("c", "c")):
            listener = network.socket(host, socket.AF_INET, socket.SOCK_STREAM)
            listener.bind((network.address(name), 0))
            listener.listen()
            places[name] = (listener, (network.address(name), listener.getsockname()[1]))

        async def reached(host: str) -> set[str]:
            return {name for name, (_, address) in places.items()
                    if name != host and await reaches(network, host, address)}  # fmt: skip

        # The kernel takes up to a second to notice that a cable was plugged in.
        everything = {"b", "part-of-b", "c"}
        await until_good(lambda: reached("a"), lambda names: names == everything)
        with network.cut("a", "part-of-b"):
            assert await reached("a") == {"b", "c"}
            assert await reached("c") == {"a", "b", "part-of-b"}
        with network.cut("a", "b"):
            assert await reached("a") == {"c"}
            assert "a" not in await reached("b")
        assert await reached("a") == everything
        assert socket.if_nameindex() == ours
        for listener, _ in places.values():
            listener.close()


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_nothing_is_left_however_its_maker_ends(end: signal.Signals) -> None:
    maker = await asyncio.create_subprocess_exec(sys.executable, "-c", _HOLDS_ONE, stdout=PIPE)
    assert maker.stdout is not None
    prefix = (await maker.stdout.readline()).decode().strip().removesuffix("a")

    def left() -> list[str]:
        return [name for name in os.listdir("/run/netns") if name.startswith(prefix)]

    assert len(left()) == 3
    maker.send_signal(end)
    await maker.wait()
    await until(lambda: not left(), "the namespaces go")
