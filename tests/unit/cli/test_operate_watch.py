"""Following handles: agents that are too quick, that leave, and that say what nobody asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import grpc
import pytest

from contraflow.cli.operate.servers import OperatorError, Servers
from contraflow.cli.operate.watch import follow_handles
from contraflow.core.errors import Overloaded
from contraflow.runtime.grpc_errors import Unreachable
from contraflow.v1 import agent_service_pb2 as pb
from contraflow.v1 import engine_pb2, handle_pb2

GONE = Unreachable("gone", grpc.StatusCode.UNAVAILABLE)


class Agents:
    """By target, what each watch says before it ends with the error that comes last."""

    def __init__(self, **watches: list[list[Any]]) -> None:
        self._watches = watches

    def agent(self, target: str) -> Any:
        this = self

        class Stub:
            def WatchHandles(self, request: object) -> Iterator[pb.WatchHandlesResponse]:
                for step in this._watches[target].pop(0):
                    if isinstance(step, Exception):
                        raise step
                    yield step

        return Stub()


def handle(engine: str, number: int) -> pb.WatchHandlesResponse:
    message = handle_pb2.Handle(handle_id=f"{engine}/{number}", engine_id=engine)
    return pb.WatchHandlesResponse(handle=message)


def followed(agents: Agents, *targets: str) -> list[str]:
    shown: list[str] = []
    engines = [engine_pb2.Engine(engine_id=f"e-{one}", agent_address=one) for one in targets]
    with pytest.raises(OperatorError, match="no agent is left"):
        follow_handles(
            cast("Servers", agents), engines, "", lambda one: shown.append(one.handle_id)
        )
    return sorted(shown)


def test_a_watch_that_was_too_slow_begins_anew(capsys: pytest.CaptureFixture[str]) -> None:
    listed = pb.WatchHandlesResponse(listed=pb.HandlesListed())
    agents = Agents(a=[[handle("e-a", 1), listed, Overloaded("slow")], [handle("e-a", 2), GONE]])
    assert followed(agents, "a") == ["e-a/1", "e-a/2"]
    assert "too fast" in capsys.readouterr().err


def test_agents_are_followed_until_the_last_has_left(capsys: pytest.CaptureFixture[str]) -> None:
    agents = Agents(a=[[GONE]], b=[[handle("e-b", 1), handle("other", 1)]])
    assert followed(agents, "a", "b") == ["e-b/1"]
    errors = capsys.readouterr().err
    assert "no answer from the agent at a" in errors
    assert "the agent has ended the watch" in errors
