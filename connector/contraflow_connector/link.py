"""The link to the node's agent: one gRPC stream on its own thread, in the scheduler process.

The engine never waits for it. Whatever can not be said is dropped, and the next Hello
carries the whole handle table.
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from contraflow.core.fleet import Engine
from contraflow.core.handle import Handle
from contraflow.core.transfer_params import Params
from contraflow.v1 import engine_link_service_pb2 as pb
from contraflow.v1 import handle_pb2
from contraflow.v1.engine_link_service_pb2_grpc import EngineLinkServiceStub
from contraflow_connector.guard import log
from contraflow_connector.orders import Orders
from contraflow_connector.retained import Retained

_BACKLOG = 4096
_OPTIONS = (("grpc.max_receive_message_length", 64 * 1024 * 1024),)
_FIRST_DELAY, _LAST_DELAY = 0.1, 5.0


class Link:
    """Speaks for one engine with the agent at ``target``."""

    def __init__(
        self,
        target: str,
        engine: Engine,
        retained: Retained,
        offer: Callable[[Handle], Params],
    ) -> None:
        """``offer`` makes the parameters of a claimed handle as its reader shall get them."""
        self._target = target
        self._retained = retained
        self._orders = Orders(engine, retained, offer, self._say)
        self._stop = threading.Event()
        self._lost_some = threading.Event()
        self._outbox: queue.Queue[pb.AttachRequest | None] = queue.Queue(_BACKLOG)
        self._call: Any = None
        self._last_heard: float | None = None
        self._attached = False
        self._thread = threading.Thread(target=self._run, name="contraflow-link", daemon=True)

    def start(self) -> None:
        """Begin to attach, and to come back whenever the agent does."""
        self._thread.start()

    def close(self) -> None:
        """End the stream; returns once the thread is done, or after two seconds."""
        self._stop.set()
        if self._call is not None:
            self._call.cancel()
        if self._thread.is_alive():
            self._thread.join(2.0)

    def silent_for(self) -> float:
        """Seconds since an agent was last there; infinite if there never was one."""
        if self._attached:
            return 0.0
        heard = self._last_heard
        return float("inf") if heard is None else self._retained.clock() - heard

    def report(self, report: handle_pb2.PullReport) -> None:
        """Pass on how a pull went, if the agent is there."""
        if self._attached:
            self._say(pb.AttachRequest(pull_report=report))

    def _run(self) -> None:
        delay = _FIRST_DELAY
        while not self._stop.is_set():
            try:
                self._attach()
            except grpc.RpcError as error:
                code = error.code() if isinstance(error, grpc.Call) else error
                log.debug("the link to the agent at %s ended: %s", self._target, code)
            except Exception:
                log.exception("the link to the agent failed; it will be tried again")
            if self._attached:
                log.warning(
                    "the agent at %s is gone; nothing can be pulled meanwhile", self._target
                )
                self._attached = False
                self._last_heard = self._retained.clock()
                delay = _FIRST_DELAY
            self._retained.unsubscribe()
            # Jitter, so that the engines of a node do not come back in one instant.
            self._stop.wait(delay * (0.5 + random.random()))
            delay = min(delay * 2, _LAST_DELAY)

    def _attach(self) -> None:
        with grpc.insecure_channel(self._target, _OPTIONS) as channel:
            self._outbox = queue.Queue(_BACKLOG)
            self._lost_some.clear()
            hello = self._orders.hello(self._retained.subscribe(self._orders.changed))
            self._call = EngineLinkServiceStub(channel).Attach(self._messages(hello, self._outbox))
            try:
                if self._stop.is_set() or self._lost_some.is_set():
                    return  # it was to be cancelled before there was a call to cancel
                for order in self._call:
                    self._obey(order)
            finally:
                self._outbox_end()
                self._call.cancel()

    @staticmethod
    def _messages(
        hello: pb.AttachRequest, outbox: queue.Queue[pb.AttachRequest | None]
    ) -> Iterator[pb.AttachRequest]:
        yield hello
        while (message := outbox.get()) is not None:
            yield message

    def _outbox_end(self) -> None:
        # Frees the thread that grpc lends to _messages, even if the backlog is full.
        while True:
            try:
                self._outbox.put_nowait(None)
                return
            except queue.Full:
                try:
                    self._outbox.get_nowait()
                except queue.Empty:
                    continue

    def _say(self, message: pb.AttachRequest) -> None:
        try:
            self._outbox.put_nowait(message)
        except queue.Full:
            # The agent does not listen: attach anew, which carries the whole table.
            self._lost_some.set()
            if self._call is not None:
                self._call.cancel()

    def _obey(self, order: pb.AttachResponse) -> None:
        if order.HasField("welcome"):
            self._attached = True
            log.info("attached to the agent at %s", self._target)
        self._orders.obey(order)
