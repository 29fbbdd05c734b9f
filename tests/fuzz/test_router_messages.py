"""Calls of RouterService with generated messages: typed refusals, and nothing is left."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from hypothesis import given
from hypothesis import strategies as st

from contraflow.router.servicer import SERVICE
from contraflow.runtime.address import Address
from contraflow.runtime.grpc_server import GrpcServer, Limits
from contraflow.v1 import router_service_pb2 as pb
from contraflow.v1.router_service_pb2_grpc import add_RouterServiceServicer_to_server
from tests.fuzz.bodies import BODIES, CHAT, MESSAGES, keys
from tests.fuzz.calls import called, calls
from tests.fuzz.front_door import FrontDoor, front_door
from tests.fuzz.json_texts import changed, odd
from tests.fuzz.stage import Stage, staged

bodies = st.sampled_from(list(BODIES.values())).flatmap(lambda body: changed(body, keys))
extra = changed({"temperature": 0, "stream_options": {"include_usage": False}}, keys)
json_texts = (bodies | extra | odd).filter(str.isprintable)
VALUES = {
    "json": json_texts,
    "openai_json": json_texts,
    "extra_json": st.just("") | json_texts,
    "path": st.sampled_from(["", *BODIES]),
    "model": st.sampled_from(["", "tiny"]),
    "role": st.sampled_from(["user", "assistant"]),
    "tenant": st.sampled_from(["default"]),
    "session_id": st.sampled_from(["conversation-1"]),
    "extra": st.just(""),
}


SAMPLING = pb.Sampling(max_tokens=4, temperature=0.5, top_p=0.5, seed=1, stop=["x"])
SEEDS = (
    pb.GenerateRequest(
        messages=pb.Messages(messages=[pb.Message(role="user", content="hi")]),
        session_id="conversation-1", sampling=SAMPLING,
    ),
    pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, 2, 3]), model="tiny"),
    pb.GenerateRequest(raw=pb.RawRequest(path="/v1/messages", json=json.dumps(MESSAGES))),
    pb.GenerateRequest(raw=pb.RawRequest(json=json.dumps(CHAT)), extra_json='{"n": 1}'),
    pb.PlanTurnRequest(tenant="default", openai_json=json.dumps(CHAT), prompt_tokens=2**40),
    pb.EndSessionRequest(session_id="conversation-1"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RouterWorld:
    door: FrontDoor
    channel: grpc.aio.Channel


@asynccontextmanager
async def router_service() -> AsyncIterator[RouterWorld]:
    server = GrpcServer("router", Limits())
    async with front_door() as door:
        server.add(add_RouterServiceServicer_to_server, door.world.app.servicer, SERVICE)
        address = server.listen(Address("127.0.0.1", 0))
        await server.start()
        async with grpc.aio.insecure_channel(str(address)) as channel:
            yield RouterWorld(door, channel)
        await server.stop(0)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage[RouterWorld]]:
    yield from staged(router_service())


any_call = calls(pb.DESCRIPTOR.services_by_name["RouterService"], VALUES, SEEDS)


@given(st.lists(any_call, min_size=1, max_size=8))
def test_any_calls_are_answered_or_refused_with_a_reason(
    stage: Stage[RouterWorld], several: list[tuple[MethodDescriptor, bytes]]
) -> None:
    here = stage.world

    async def example() -> None:
        here.door.reset()
        for call in several:
            await called(here.channel, *call)
        await here.door.nothing_left()

    stage.run(example())


def test_a_plain_turn_goes_well_after_all_that(stage: Stage[RouterWorld]) -> None:
    stage.run(stage.world.door.still_serves())
