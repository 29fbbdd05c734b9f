"""Scenarios 26 and 27: what a client must not say is taken out and logged, all else passes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.support.router_world import SESSION, World, router_world

pytestmark = pytest.mark.integration

INTERNAL = "10.6.6.6"
FORGED = {"do_remote_prefill": True, "remote_host": INTERNAL, "remote_port": 5600}
# As no serializer of ours would write it.
MESSAGES = (
    '[{"content":  null, "role": "assistant", "tool_calls": ['
    '{"id":"a", "type":"function", "function":{"name":"f", "arguments":"{\\"q\\":  1e3}"}},\t'
    '{"id":"b", "type":"function", "function":{"name":"g", "arguments":"\\u00e9 é \\/"}}]},\n'
    '{"role":"tool", "tool_call_id":"b", "content":"" },'
    '{"role":"tool", "tool_call_id":"a", "content":[{"type":"text","text":"\\ud83d\\ude00"}]}]'
)
CALLS = [
    {"index": index, "id": f"call_{index}", "type": "function",
     "function": {"name": "look_up", "arguments": '{"q":  "\u00e9"}'}}
    for index in range(2)
]  # fmt: skip


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with router_world() as world:
        yield world


async def sent(world: World, stream: bool) -> bytes:
    """What the client gets for MESSAGES."""
    body = (
        f'{{"model": "tiny", "session_id": "s", "stream": {json.dumps(stream)}, '
        f'"parallel_tool_calls": true, "messages": {MESSAGES} }}'
    )
    url = f"{world.url}/v1/chat/completions"
    headers = {"content-type": "application/json"}
    async with world.client.post(url, data=body.encode(), headers=headers) as response:
        assert response.status == 200
        return await response.read()


@pytest.mark.parametrize("stream", [False, True])
async def test_scenario_26_the_clients_own_parameters_are_logged_without_what_they_say(
    world: World, stream: bool
) -> None:
    with capture_logs() as logs:
        answer = await world.chat(**SESSION, stream=stream, kv_transfer_params=FORGED)
    assert answer.status == 200
    assert b"to be" in answer.raw
    assert INTERNAL.encode() not in world.prefill.last.raw + world.decode.last.raw
    [line] = [log for log in logs if log["event"] == "client_transfer_params_stripped"]
    assert line["log_level"] == "warning"
    assert INTERNAL not in str(logs)


@pytest.mark.parametrize("stream", [False, True])
async def test_scenario_27_tool_messages_reach_both_engines_byte_for_byte(
    world: World, stream: bool
) -> None:
    await sent(world, stream)
    for received in (world.prefill.last, world.decode.last):
        assert MESSAGES.encode() in received.raw
        assert received.body["parallel_tool_calls"] is True


async def test_scenario_27_parallel_calls_reach_the_client_byte_for_byte(world: World) -> None:
    message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": CALLS}
    world.decode.script.message = message
    raw = await sent(world, stream=False)
    assert json.dumps(message).encode() in raw
    assert b"kv_transfer_params" not in raw


async def test_scenario_27_streamed_parallel_calls_reach_the_client_byte_for_byte(
    world: World,
) -> None:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": None},
        *({"tool_calls": [call]} for call in CALLS),
        {"tool_calls": [{"index": 1, "function": {"arguments": " \u2028"}},
                        {"index": 0, "function": {"arguments": "}"}}]},
    ]  # fmt: skip
    events = [
        *(
            b"data:" + json.dumps({"choices": [{"delta": delta}], "n": None}).encode() + b"\n\n"
            for delta in deltas
        ),
        b'data: {"choices": [{"delta": {}, "finish_reason":"tool_calls"}]}\r\n\r\n',
        b": a comment\n\n",
        b"data: [DONE]\n\n",
    ]
    world.decode.script.events = lambda received: events
    assert await sent(world, stream=True) == b"".join(events)
