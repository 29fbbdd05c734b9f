"""The servers that commands ask: where they are, how long they may take, their errors in words."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, Any, TypeVar, cast

import click
import grpc

from contraflow.core.errors import ContraflowError, Reason
from contraflow.runtime.grpc_errors import CallFailed, TimedOut, Unreachable, from_rpc_error
from contraflow.v1.agent_service_pb2_grpc import AgentServiceStub
from contraflow.v1.directory_service_pb2_grpc import DirectoryServiceStub
from contraflow.v1.router_service_pb2_grpc import RouterServiceStub

DEADLINE_SECONDS = 5.0
"""Of each call but a watch."""

T = TypeVar("T")

API_KEY = "CONTRAFLOW_API_KEY"
"""Environment variable: a key of the tenant, where tenants are configured."""

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    # Tells a watch that its agent is gone without a word.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # A proxy from the environment has no business between parts of one cluster.
    ("grpc.enable_http_proxy", 0),
)
_NAME_ANOTHER = {
    "directory": "start it, or name another with --directory or CONTRAFLOW_DIRECTORY",
    "router": "start it, or name another with --router or CONTRAFLOW_ROUTER",
    "agent": "is `contraflow agent` running on that node, and its advertise_address right?",
}
_NEXT = {
    Reason.NO_ELIGIBLE_ENGINE: "`contraflow ps` shows which engines there are",
    Reason.ENGINE_NOT_ATTACHED: "`contraflow ps` shows which engines are attached",
    Reason.ENGINE_INCARNATION_STALE: "`contraflow ps` shows the one that took its place",
    Reason.ENGINE_UNRESPONSIVE: "the engine may be stalled: look at its log, then try again",
    Reason.STORE_UNAVAILABLE: "look whether etcd is up, then try again",
    Reason.UNAUTHENTICATED: f"set {API_KEY} to a key of the tenant",
    Reason.TENANT_MISMATCH: f"set {API_KEY} to a key of the tenant",
    Reason.OVERLOADED: "try again in a moment",
}


class OperatorError(click.ClickException):
    """One line: what happened, and what to do next. Exit status 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it as every command of ours does."""
        click.echo(f"contraflow: {' '.join(self.message.split())}", err=True)


@dataclass(frozen=True, slots=True)
class Server:
    """Somebody to ask. ``kind`` is "directory", "agent" or "router", ``target`` of gRPC."""

    kind: str
    target: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.target}"


@contextmanager
def asking(server: Server) -> Iterator[None]:
    """Turns what a call raises into a ContraflowError that ``in_words`` can tell."""
    try:
        yield
    except grpc.RpcError as error:
        # The errors of calls say the same with and without asyncio.
        raise from_rpc_error(cast("grpc.aio.AioRpcError", error)) from error


def in_words(error: ContraflowError, server: Server) -> OperatorError:
    """What a failed call means to the person at the keyboard."""
    if isinstance(error, Unreachable):
        return OperatorError(f"no answer from the {server}: {_NAME_ANOTHER[server.kind]}")
    if isinstance(error, TimedOut):
        return OperatorError(
            f"the {server} did not answer within {DEADLINE_SECONDS:g} s: look at its log, "
            "or try again"
        )
    if isinstance(error, CallFailed):
        return OperatorError(
            f"what answers at {server.target} does not speak as a {server.kind} of this release "
            f"({error.code.name}): {_NAME_ANOTHER[server.kind]}"
        )
    following = _NEXT.get(error.reason)
    return OperatorError(f"{error} ({server})" + (f": {following}" if following else ""))


class Servers(ExitStack):
    """The channels of one command, closed with the context. Calls block."""

    def __init__(self) -> None:
        super().__init__()
        self._channels: dict[str, grpc.Channel] = {}

    def directory(self, server: Server) -> DirectoryServiceStub:
        """Calls of a directory."""
        return DirectoryServiceStub(self._channel(server.target))

    def router(self, server: Server) -> RouterServiceStub:
        """Calls of a router."""
        return RouterServiceStub(self._channel(server.target))

    def agent(self, target: str) -> AgentServiceStub:
        """Calls of an agent."""
        return AgentServiceStub(self._channel(target))

    def _channel(self, target: str) -> grpc.Channel:
        if target not in self._channels:
            channel = grpc.insecure_channel(target, options=_OPTIONS)
            self._channels[target] = self.enter_context(channel)
        return self._channels[target]


def credentials() -> tuple[tuple[str, str], ...]:
    """Metadata of calls that are a tenant's."""
    key = os.environ.get(API_KEY, "")
    return (("authorization", f"Bearer {key}"),) if key else ()


def ask(server: Server, call: Callable[[], T]) -> T:
    """The answer of one call. Raises OperatorError."""
    try:
        with asking(server):
            return call()
    except ContraflowError as error:
        raise in_words(error, server) from error


def each_agent(
    targets: Iterable[str], call: Callable[[str], grpc.Future[T]]
) -> dict[str, T | None]:
    """The answers of agents that are asked all at once; None of those that give none.

    Raises OperatorError for what an agent refuses.
    """
    calls = {target: call(target) for target in targets}
    return {target: _answer(Server("agent", target), one) for target, one in calls.items()}


def _answer(server: Server, call: grpc.Future[T]) -> T | None:
    try:
        with asking(server):
            return call.result()
    except (Unreachable, TimedOut):
        return None
    except ContraflowError as error:
        raise in_words(error, server) from error
