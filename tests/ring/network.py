"""Hosts in network namespaces of their own, joined by a bridge in another one.

Of the traffic nothing touches the machine's own network. All of it goes when the process that
made it ends, however it ends.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_SWITCH = "switch"
_DEVICE = "eth0"
_NOBODY = "02:00:00:00:00:01"  # frames to it are lost: no host has it
_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
_runs = itertools.count(1)
# Deletes the names as soon as its standard input ends, which the kernel sees to.
_SWEEP = 'read -r _; for name in "$@"; do ip netns delete "$name"; done'


class Network:
    """``with Network(hosts) as network``. Each host has the address ``address(host)``; names
    in ``aliases`` are further addresses of a host. Raises OSError or CalledProcessError."""

    def __init__(self, hosts: Sequence[str], aliases: Sequence[tuple[str, str]] = ()) -> None:
        self._prefix = f"ring-{os.getpid()}-{next(_runs)}-"
        self._hosts = {host: [host] for host in hosts}
        for alias, host in aliases:
            self._hosts[host].append(alias)
        names = [*hosts, *(alias for alias, _ in aliases)]
        self._addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, 1)}
        self._sweeper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Network:
        namespaces = [self.namespace(name) for name in (_SWITCH, *self._hosts)]
        self._sweeper = subprocess.Popen(
            ["sh", "-c", _SWEEP, "sweep", *namespaces],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C goes to the whole foreground group
        )
        try:
            self._build()
        except BaseException:
            self._sweep()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._sweep()

    def address(self, name: str) -> str:
        """Of a host, or of an alias."""
        return self._addresses[name]

    def namespace(self, host: str) -> str:
        """The name of a host's namespace."""
        return self._prefix + host

    def command(self, host: str, command: Sequence[str]) -> list[str]:
        """A command that runs ``command`` on a host, in the same process."""
        return ["ip", "netns", "exec", self.namespace(host), *command]

    def socket(self, host: str, *arguments: Any) -> socket.socket:
        """A socket of a host, for this process."""
        with _inside(self.namespace(host)):
            return socket.socket(*arguments)

    @contextmanager
    def cut(self, one: str, other: str) -> Iterator[None]:
        """Between two hosts every packet is lost. Of an alias only those that are sent to it,
        and nothing that its host sends."""
        cuts = [*self._cuts(one, other), *self._cuts(other, one)]
        assert cuts, "two aliases have nothing between them to cut"
        try:
            for host, address in cuts:
                neighbour = f"{address} lladdr {_NOBODY} dev {_DEVICE}"
                self._ip(host, f"neigh replace {neighbour} nud permanent")
            yield
        finally:
            for host, address in cuts:
                self._ip(host, f"neigh delete {address} dev {_DEVICE}")

    def _cuts(self, here: str, there: str) -> list[tuple[str, str]]:
        """Where which address is not to be reached any more."""
        if here not in self._hosts:
            return []
        return [(here, self.address(name)) for name in self._hosts.get(there, [there])]

    def _build(self) -> None:
        for name in (_SWITCH, *self._hosts):
            _run("ip", "netns", "add", self.namespace(name))
        self._ip(_SWITCH, "link add name bridge type bridge")
        self._ip(_SWITCH, "link set dev bridge up")
        for host, names in self._hosts.items():
            peer = f"peer name {_DEVICE} netns {self.namespace(host)}"
            self._ip(_SWITCH, f"link add name {host} type veth {peer}")
            self._ip(_SWITCH, f"link set dev {host} master bridge up")
            self._ip(host, "link set dev lo up")
            for name in names:
                self._ip(host, f"address add {self.address(name)}/24 dev {_DEVICE}")
            self._ip(host, f"link set dev {_DEVICE} up")

    def _ip(self, host: str, words: str) -> None:
        _run("ip", "-n", self.namespace(host), *words.split())

    def _sweep(self) -> None:
        if self._sweeper is not None and self._sweeper.stdin is not None:
            self._sweeper.stdin.close()
            self._sweeper.wait()
            self._sweeper = None


@contextmanager
def _inside(namespace: str) -> Iterator[None]:
    """This thread in a namespace. Nothing may be awaited meanwhile."""
    with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{namespace}") as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(home.fileno())


def _enter(namespace: int) -> None:
    if _LIBC.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
