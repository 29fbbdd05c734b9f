"""Ports on loopback."""

from __future__ import annotations

import random
import socket

from contraflow.runtime.address import Address
from contraflow.runtime.config import PortInUse

LOOPBACK = "127.0.0.1"
# Below the range from which the kernel takes the ports of outgoing connections, so that a
# port found free stays free until its process binds it.
_RANGE = range(16_000, 32_000)


class PortAllocator:
    """Hands out each port once."""

    def __init__(self, choice: random.Random | None = None) -> None:
        self._choice = choice or random.SystemRandom()
        self._given: set[int] = set()

    def take(self, count: int = 1) -> int:
        """A random port that nobody listens on, the first of ``count`` neighbours of which that is
        true. Raises OSError if there is none."""
        for _ in _RANGE:
            first = self._choice.choice(_RANGE)
            ports = range(first, first + count)
            if self._given.isdisjoint(ports) and all(map(is_free, ports)):
                self._given.update(ports)
                return first
        raise OSError("no free port on loopback")

    def take_fixed(self, port: int) -> int:
        """The port asked for. Raises PortInUse, which names it."""
        if port in self._given or not is_free(port):
            raise PortInUse(Address(LOOPBACK, port))
        self._given.add(port)
        return port


def is_free(port: int) -> bool:
    """True if a server could listen on the port now."""
    with socket.socket() as probe:
        # As servers do: connections of an earlier run in TIME_WAIT are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True
