"""The link between engine and agent inside a world."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

from contraflow.core.fleet import Engine, Role
from contraflow.v1 import engine_link_service_pb2 as pb
from contraflow.v1 import handle_pb2
from contraflow.verify.link import LinkServer, MemoryLink
from contraflow.verify.loop import run
from contraflow.verify.net import Net, Part, own_tasks
from contraflow_connector.retained import Retained

AGENT = "unix:/agent-1"


def test_an_agent_that_does_not_listen_is_attached_anew() -> None:
    async def main() -> list[str | None]:
        own_tasks(asyncio.get_running_loop())
        net, agent, engine = Net(Random(1)), Part("agent-1"), Part("decode-1")
        heard: list[str | None] = []

        async def attach(requests: Any, context: None) -> AsyncIterator[pb.AttachResponse]:
            heard.append((await anext(requests)).WhichOneof("message"))
            yield pb.AttachResponse(welcome=pb.Welcome(attach_epoch=len(heard)))
            await asyncio.Event().wait()

        net.listeners[AGENT] = LinkServer(agent, attach)
        described = Engine("e", "n", Role.DECODE, "http://127.0.0.1:1")
        link = MemoryLink(net, engine, AGENT, described, Retained(lambda: 0.0), lambda handle: {})

        async def talk() -> None:
            link.start()
            await asyncio.sleep(1.0)
            for _ in range(5000):
                link.report(handle_pb2.PullReport())
            await asyncio.sleep(10.0)

        await engine.spawn(talk())
        await engine.kill()
        await agent.kill()
        return heard

    assert run(main()) == ["hello", "hello"]
