"""Scenarios 13 and 14: transfer parameters through a whole router and its agent: from the owner
to prefill, from prefill to decode. Whatever they hold, they arrive, but for private keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.fake_engine import Received
from tests.support.router_world import HANDLE_PARAMS, SESSION, World, router_world

pytestmark = pytest.mark.integration

STRANGE: dict[str, Any] = {
    "future_text": "\u00e9\U0001f600",
    "future_number": 2**63,
    "future_float": 1e-300,
    "future_flag": False,
    "null_key": None,
    "remote_block_ids": [[4, 5], [], [6]],
    "nested": {
        "lists": [[1, [2, [None]]], {"_deep": "kept: only the engine's own keys are private"}]
    },
}
PRIVATE = {"_remote_blocks_processed": True, "_private": {"a": 1}}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with router_world() as world:
        yield world


def arrived(received: Received) -> dict[str, Any]:
    return {key: value for key, value in received.params.items() if key != "contraflow"}


async def test_scenario_13_from_prefill_to_decode(world: World) -> None:
    given: dict[str, Any] = {}

    def params(received: Received) -> dict[str, Any]:
        own = world.prefill.own_params(received)
        assert own is not None
        given.update({**own, **STRANGE, **PRIVATE})
        return dict(given)

    world.prefill.script.params = params
    assert (await world.chat()).status == 200

    kept = {key: value for key, value in given.items() if key[0] != "_" and key != "contraflow"}
    assert arrived(world.decode.last) == kept
    assert kept.keys() > STRANGE.keys()


@pytest.mark.parametrize("host", ["fd00::1", "::1", "10.0.0.1", "engine-7.example"])
async def test_scenario_14_from_the_owner_to_prefill(
    world: World, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An IPv6 host stays as it is, without brackets: the connector puts them where it needs."""
    given = {**HANDLE_PARAMS, **STRANGE, **PRIVATE, "remote_host": host}
    monkeypatch.setattr("tests.support.router_world.HANDLE_PARAMS", given)
    world.know_session()

    assert (await world.chat(**SESSION)).plan["decision"] == "PULL"

    kept = {key: value for key, value in given.items() if key[0] != "_"}
    flags = {"do_remote_decode": True, "do_remote_prefill": False}
    assert arrived(world.prefill.last) == {**kept, **flags}
