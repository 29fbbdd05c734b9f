"""The router's front door without sockets before it, and engines behind it that say anything."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from contraflow.runtime.grpc_interceptor import Context
from contraflow.v1 import agent_service_pb2 as agent_pb
from contraflow.v1 import router_service_pb2 as pb
from contraflow.web import HttpServer
from contraflow.web.connection import ServerConnection
from tests.support.raw_engine import RawEngine, Sent, raw_engine, stream, whole
from tests.support.router_world import SESSION, FakeAgent, World, router_world
from tests.support.wait import until

SPOKEN = b'data: {"choices": [{"index": 0, "delta": {"content": "to be"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
_IN_FLIGHT = "contraflow_router_turns_in_flight"
PARAMS: dict[str, Any] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[4, 5, 6]],
    "remote_engine_id": "p1",
    "remote_request_id": "r1",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
    "remote_num_tokens": 300,
}


@dataclass(frozen=True, slots=True)
class Reply:
    """A response as the client reads it."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool = True


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self, connection: ServerConnection) -> None:
        super().__init__()
        self.written = bytearray()
        self.ended = asyncio.Event()
        self._connection = connection
        self._closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self._closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self.written += data

    def writelines(self, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        for part in parts:
            self.write(part)

    def write_eof(self) -> None:
        self.ended.set()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.ended.set()
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    def abort(self) -> None:
        self.close()


class Agent(FakeAgent):
    """Knows of no handles but those it grants, and releases whatever it is told to."""

    async def ListHandles(
        self, request: agent_pb.ListHandlesRequest, context: Context
    ) -> agent_pb.ListHandlesResponse:
        return agent_pb.ListHandlesResponse(engine_ids=["d1"])

    async def ReleaseHandles(
        self, request: agent_pb.ReleaseHandlesRequest, context: Context
    ) -> agent_pb.ReleaseHandlesResponse:
        return agent_pb.ReleaseHandlesResponse(released_handle_ids=request.handle_ids)


class FrontDoor:
    """One router for many examples; ``reset`` before each."""

    def __init__(self, world: World, prefill: RawEngine, decode: RawEngine) -> None:
        self.world = world
        self.prefill = prefill
        self.decode = decode
        self._server = HttpServer(world.app.routes.handle)

    def reset(self) -> None:
        """Engines that answer well, a session with a handle, and nothing heard yet."""
        for engine in (self.prefill, self.decode):
            engine.sent.clear()
            engine.cuts = False
        self.prefill.answer = _prefilled
        self.decode.answer = _decoded
        agent = self.world.agent
        agent.live.clear()
        agent.acquired.clear()
        agent.returned.clear()
        self.world.know_session()

    async def send(self, *pieces: bytes) -> list[Reply]:
        """What comes back for these bytes; the client leaves when nothing more will."""
        connection = ServerConnection(self._server)
        transport = Transport(connection)
        connection.connection_made(transport)
        for piece in pieces:
            if not transport.is_closing():
                connection.data_received(piece)
        while self._server._tasks:  # pipelined requests run one after the other
            await asyncio.wait(set(self._server._tasks))
            await asyncio.sleep(0)
        transport.close()
        await until(lambda: not self._server.connections, "the connection is gone")
        return replies(bytes(transport.written))

    async def post(self, path: str, body: bytes, *headers: str) -> Reply:
        """The one answer to a request that is framed well."""
        lines = [f"POST {path} HTTP/1.1", "Host: here", f"Content-Length: {len(body)}", *headers]
        head = "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")
        [reply] = await self.send(head, body)
        return reply

    async def nothing_left(self) -> None:
        """No task, no leg, and no claim that is neither given back nor with an engine."""
        app, agent = self.world.app, self.world.agent
        assert not self._server._tasks
        taken = {self._claim(sent) for sent in self.prefill.sent}
        await until(lambda: agent.live <= taken, "claims that no engine has are given back")
        in_flight = partial(app.metrics.registry.get_sample_value, _IN_FLIGHT)
        await until(lambda: in_flight() == 0, "no turn runs")
        plan = await app.servicer.PlanTurn(pb.PlanTurnRequest(tenant="default"), None)  # type: ignore[arg-type]
        assert [candidate.load for candidate in plan.candidates] == [0, 0]

    async def still_serves(self) -> None:
        """A plain turn with a handle goes well."""
        self.reset()
        reply = await self.post("/v1/chat/completions", json.dumps(GOOD).encode())
        assert reply.status == 200, reply
        assert reply.body == SPOKEN + DONE
        assert "decision=PULL" in reply.headers["x-contraflow"], reply
        await self.nothing_left()

    @staticmethod
    def _claim(sent: Sent) -> str:
        ours = sent.params.get("contraflow")
        return ours.get("claim_id", "") if isinstance(ours, dict) else ""


GOOD = {**SESSION, "model": "tiny", "stream": True, "messages": [{"role": "user", "content": "hi"}]}


def replies(data: bytes) -> list[Reply]:
    """Responses one after the other; AssertionError if that is not what the bytes are."""
    found = []
    rest = _Unclosed(data)
    while rest.tell() < len(data):
        response = http.client.HTTPResponse(_Socket(rest))  # type: ignore[arg-type]
        response.begin()
        headers = {name.lower(): value for name, value in response.getheaders()}
        try:
            body, complete = response.read(), True
        except http.client.IncompleteRead as error:
            body, complete = error.partial, False
        if response.status != 100:
            found.append(Reply(response.status, headers, body, complete))
    return found


class _Unclosed(io.BytesIO):
    def close(self) -> None:
        pass


class _Socket:
    def __init__(self, data: io.BytesIO) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return self._data


def _prefilled(sent: Sent) -> bytes:
    return whole({"id": "cmpl-1", "choices": [], "kv_transfer_params": PARAMS})


def _decoded(sent: Sent) -> bytes:
    if b'"stream":true' in sent.raw.replace(b" ", b""):
        return stream(SPOKEN, DONE)
    return whole({"id": "cmpl-1", "choices": [{"message": {"content": "to be"}}]})


@asynccontextmanager
async def front_door() -> AsyncIterator[FrontDoor]:
    """1P1D of raw engines behind a router."""
    agent = Agent()  # type: ignore[abstract]  # the router calls only some methods
    async with (
        router_world(agent=agent) as world,
        raw_engine() as prefill,
        raw_engine() as decode,
    ):
        world.know(
            replace(world.prefill.engine, endpoint=prefill.endpoint),
            replace(world.decode.engine, endpoint=decode.endpoint),
        )
        yield FrontDoor(world, prefill, decode)
