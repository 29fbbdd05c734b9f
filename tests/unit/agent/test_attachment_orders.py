"""What an engine is ordered, and what is believed of the answers."""

from __future__ import annotations

import pytest
from tests.unit.agent.test_attachment import CLAIMED, World, update

from contraflow.core.handle import State
from contraflow.v1 import engine_link_service_pb2 as pb


@pytest.mark.parametrize("then", [State.READ, State.RETAINED])
async def test_what_an_engine_says_after_a_grant_is_not_undone_by_it(then: State) -> None:
    world = World()
    call = world.ask()
    order = await world.order()
    world.requests.put_nowait(pb.AttachRequest(handle_update=update(State.CLAIMED, "c1")))
    world.grant(order)
    world.requests.put_nowait(pb.AttachRequest(handle_update=update(then)))
    assert (await call).handle.claim_id == "c1"
    assert [one.state for one in world.told] == [State.CLAIMED, then]
    known = world.attachment.mirror.get(CLAIMED.handle_id)
    assert (known.state if known else State.READ) is then
