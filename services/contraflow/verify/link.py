"""The link between engine and agent without a socket: the connector's orders, the agent's
servicer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from contraflow.core.errors import ContraflowError
from contraflow.core.fleet import Engine
from contraflow.v1 import engine_link_service_pb2 as pb
from contraflow.v1 import handle_pb2
from contraflow.verify.net import Net, Part
from contraflow_connector.orders import Orders
from contraflow_connector.retained import Retained

_BACKLOG = 4096
_FIRST_DELAY, _LAST_DELAY = 0.1, 5.0


class LinkServer:
    """Where an agent serves EngineLinkService; ``attach`` is its servicer's method."""

    def __init__(self, part: Part, attach: Any) -> None:
        self.part = part
        self.attach = attach


class MemoryLink:
    """Satisfies ``contraflow_connector.decisions.AgentLink``. Lives in the engine's process."""

    def __init__(
        self, net: Net, part: Part, target: str, engine: Engine, retained: Retained, offer: Any
    ) -> None:
        self._net = net
        self._part = part
        self._target = target
        self._retained = retained
        self._orders = Orders(engine, retained, offer, self._say)
        self._outbox: asyncio.Queue[pb.AttachRequest | None] = asyncio.Queue()
        self._attached = False
        self._last_heard: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._serving: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to attach, and to come back whenever the agent does."""
        self._task = asyncio.create_task(self._keep_attaching())

    def close(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()

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

    def _say(self, message: pb.AttachRequest) -> None:
        if self._outbox.qsize() < _BACKLOG:
            self._outbox.put_nowait(message)
        elif self._serving is not None:
            self._serving.cancel()  # attach anew, which carries the whole table

    async def _keep_attaching(self) -> None:
        delay = _FIRST_DELAY
        while True:
            await self._attach()
            if self._attached:
                self._attached = False
                self._last_heard = self._retained.clock()
                delay = _FIRST_DELAY
            self._retained.unsubscribe()
            await asyncio.sleep(delay * (0.5 + self._net.random.random()))
            delay = min(delay * 2, _LAST_DELAY)

    async def _attach(self) -> None:
        server: LinkServer | None = self._net.reach(self._part.name, self._target)
        if server is None:
            return
        self._outbox = asyncio.Queue()
        hello = self._orders.hello(self._retained.subscribe(self._orders.changed))
        inbox: asyncio.Queue[pb.AttachResponse | None] = asyncio.Queue()
        agent = self._serving = server.part.spawn(self._serve(server, hello, inbox))
        agent.add_done_callback(lambda _: inbox.put_nowait(None))
        try:
            while (order := await inbox.get()) is not None:
                if order.HasField("welcome"):
                    self._attached = True
                self._orders.obey(order)
        finally:
            self._outbox.put_nowait(None)
            agent.cancel()

    async def _serve(
        self, server: LinkServer, hello: pb.AttachRequest, inbox: asyncio.Queue[Any]
    ) -> None:
        orders = server.attach(self._messages(server, hello, self._outbox), None)
        try:
            async for order in orders:
                if await self._broken(server):
                    return
                inbox.put_nowait(order)
        except ContraflowError:
            return  # a later link has taken over
        finally:
            await orders.aclose()

    async def _messages(
        self, server: LinkServer, hello: pb.AttachRequest, outbox: asyncio.Queue[Any]
    ) -> AsyncIterator[pb.AttachRequest]:
        message = hello
        while message is not None and not await self._broken(server):
            yield type(message).FromString(message.SerializeToString())
            message = await outbox.get()

    async def _broken(self, server: LinkServer) -> bool:
        net = self._net
        await net.travel(self._part.name, server.part.name)
        if net.happens(net.weather.break_stream / 4, "LINK_BROKEN"):
            return True
        return net.reach(self._part.name, self._target) is not server
