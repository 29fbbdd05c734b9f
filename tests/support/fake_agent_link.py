"""The agent's side of the link, on a real unix socket and in threads: no event loop."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from contraflow.v1 import engine_link_service_pb2 as pb
from contraflow.v1 import engine_link_service_pb2_grpc as pb_grpc

DEADLINE_SECONDS = 30.0


@dataclass(eq=False)
class Stream:
    """One link: what the engine says comes out of ``heard``, orders go in by ``say``."""

    heard: queue.Queue[pb.AttachRequest] = field(default_factory=queue.Queue)
    orders: queue.Queue[pb.AttachResponse | None] = field(default_factory=queue.Queue)

    def hear(self, kind: str) -> Any:
        """The next message, which must be of that kind."""
        message = self.heard.get(timeout=DEADLINE_SECONDS)
        assert message.WhichOneof("message") == kind, message
        return getattr(message, kind)

    def say(self, **order: Any) -> None:
        """Send an order."""
        self.orders.put(pb.AttachResponse(**order))

    def end(self) -> None:
        """The agent ends this link."""
        self.orders.put(None)


class FakeAgentLink(pb_grpc.EngineLinkServiceServicer):
    """Serves Attach. Links come out of ``links`` in the order in which they are made."""

    def __init__(self) -> None:
        self.links: queue.Queue[Stream] = queue.Queue()
        self.listens = True

    def Attach(self, requests: Any, context: Any) -> Iterator[pb.AttachResponse]:
        stream = Stream()
        if not context.add_callback(stream.end):
            return  # The engine has gone already; nobody would ever end this stream.
        if self.listens:
            listener.submit(self._listen, requests, stream)
        self.links.put(stream)
        while (order := stream.orders.get()) is not None:
            yield order

    def linked(self, *, welcome: bool = True) -> tuple[Stream, Any]:
        """The next link and its Hello."""
        stream = self.links.get(timeout=DEADLINE_SECONDS)
        hello = stream.hear("hello")
        if welcome:
            stream.say(welcome=pb.Welcome(attach_epoch=1))
        return stream, hello

    @staticmethod
    def _listen(requests: Any, stream: Stream) -> None:
        try:
            for request in requests:
                stream.heard.put(request)
        except grpc.RpcError:
            pass  # The engine has gone.


listener = futures.ThreadPoolExecutor(16, thread_name_prefix="fake-agent-listener")


@contextmanager
def agent_at(target: str) -> Iterator[FakeAgentLink]:
    """An agent that listens at ``target`` for as long as the context lasts."""
    agent = FakeAgentLink()
    server = grpc.server(futures.ThreadPoolExecutor(8))
    pb_grpc.add_EngineLinkServiceServicer_to_server(agent, server)
    assert server.add_insecure_port(target)
    server.start()
    try:
        yield agent
    finally:
        server.stop(grace=None).wait()
