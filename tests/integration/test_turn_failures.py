"""What becomes of a turn, its claim and its handle when a call fails: one test for each row of
the table in ARCHITECTURE.md. Fake engines, real handle tables, real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import msgspec
import pytest
from tests.support.fake_engine import CUT_AFTER_HEADERS, TIP, FakeEngine, Received
from tests.support.owner import Owner, owned_world
from tests.support.router_world import SESSION, Answer, World, config_of
from tests.support.wait import until

from contraflow.core.errors import HandleClaimed
from contraflow.core.fleet import Role
from contraflow.core.handle import State
from contraflow.core.instructions import Pull
from contraflow.router.config import RouterConfig
from contraflow.web import ClientLimits

pytestmark = pytest.mark.integration

SOON = msgspec.structs.replace(config_of(), acquire_deadline_seconds=0.05)
PLAIN_DECODE = {"do_remote_decode": False, "do_remote_prefill": False}
PLAIN_PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}


@dataclass
class Case:
    """A world in which one turn of SESSION has left a handle, of turn ``first``."""

    world: World
    owner: Owner
    first: str

    async def next(self, **fields: Any) -> Answer:
        return await self.world.chat(**SESSION, **fields)

    async def settled(self) -> dict[str, State]:
        """The handles once everything that was to be given back has been."""
        await self.world.app.close()
        return self.owner.handles()


@asynccontextmanager
async def case_of(config: RouterConfig | None = None) -> AsyncIterator[Case]:
    async with owned_world(config) as (world, owner):
        first = await world.chat(**SESSION)
        owner.publish(world.replica)
        for engine in (world.prefill, world.decode):
            engine.received.clear()
        yield Case(world, owner, first.plan["turn"])


@pytest.fixture
async def case() -> AsyncIterator[Case]:
    async with case_of() as case:
        yield case


@asynccontextmanager
async def another(case: Case, role: Role, **fields: Any) -> AsyncIterator[FakeEngine]:
    """p2 or d2, as well known as the first."""
    world = case.world
    name = "p2" if role is Role.PREFILL else "d2"
    async with FakeEngine(name, role, agent_address=world.agent_address, **fields) as engine:
        if role is Role.DECODE:
            case.owner.attach(engine)
        else:
            case.owner.attach_reader(engine)
        world.know(engine.engine)
        yield engine


def sent(received: Received) -> dict[str, Any]:
    """Transfer parameters without our own."""
    return {key: value for key, value in received.params.items() if key != "contraflow"}


def handed_over(case: Case) -> str:
    """What names the blocks that the last prefill leg left."""
    params = case.world.prefill.own_params(case.world.prefill.last)
    assert params is not None
    return f"{params['remote_engine_id']}/{params['remote_request_id']}"


def claimed(received: Received) -> bool:
    return "claim_id" in received.params["contraflow"]


@contextmanager
def held(engine: FakeEngine) -> Iterator[None]:
    """Requests get no answer, and end only by being left."""
    before = engine.script.before_answer
    never = asyncio.Event()

    async def hold(received: Received) -> None:
        await never.wait()

    engine.script.before_answer = hold
    yield
    engine.script.before_answer = before


def in_flight(case: Case) -> float | None:
    registry = case.world.app.metrics.registry
    return registry.get_sample_value("contraflow_router_turns_in_flight")


def error_of(answer: Answer) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(answer.raw)["error"]
    return error


# Acquire.


async def test_acquire_denied(case: Case) -> None:
    case.owner.denial = HandleClaimed("another turn has it")
    answer = await case.next()
    assert answer.status == 200
    assert answer.plan["decision"] == "RECOMPUTE"
    assert answer.plan["denial"] == "HANDLE_CLAIMED"
    assert [sent(one) for one in case.world.prefill.received] == [PLAIN_PREFILL]
    assert (await case.settled())[case.first] is State.RETAINED


async def test_acquire_refused_by_the_address(case: Case) -> None:
    await case.world.stop_agent()
    answer = await case.next()
    assert (answer.status, answer.plan["denial"]) == (200, "UNREACHABLE")
    assert [sent(one) for one in case.world.prefill.received] == [PLAIN_PREFILL]


async def test_acquire_unanswered_until_its_deadline_and_granted_late() -> None:
    async with case_of(SOON) as case:
        case.owner.hold = asyncio.Event()
        answer = await case.next()  # while the agent hangs, on this call and all that follow
        assert (answer.status, answer.plan["reason"]) == (200, "ACQUIRE_TIMEOUT")
        assert [sent(one) for one in case.world.prefill.received] == [PLAIN_PREFILL]
        case.owner.hold.set()
        assert (await case.settled())[case.first] is State.RETAINED


async def test_an_agent_that_never_says_a_word_holds_no_turn_up() -> None:
    silent: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: silent.append(writer), "127.0.0.1", 0)
    async with server, case_of(SOON) as case:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        case.world.know(replace(case.world.decode.engine, agent_address=address))
        answer = await case.next()
        assert (answer.status, answer.plan["reason"]) == (200, "ACQUIRE_TIMEOUT")
        assert silent  # it was asked, and has not answered yet
        for writer in silent:
            writer.close()


async def test_a_grant_that_can_not_be_read_is_given_back(case: Case) -> None:
    case.owner.spoil = True
    answer = await case.next()
    assert (answer.status, answer.plan["decision"]) == (200, "RECOMPUTE")
    assert (await case.settled())[case.first] is State.RETAINED


async def test_an_agent_that_fails_after_the_claim_gets_it_back(case: Case) -> None:
    case.owner.break_down = True
    answer = await case.next()
    assert (answer.status, answer.plan["decision"]) == (200, "RECOMPUTE")
    assert (await case.settled())[case.first] is State.RETAINED


# Prefill.


async def test_prefill_refuses_connections_and_another_takes_the_claim(case: Case) -> None:
    async with another(case, Role.PREFILL) as second:
        await case.world.prefill.stop()
        answer = await case.next()
        assert answer.status == 200
        assert (answer.plan["prefill"], answer.plan["decision"]) == ("p2", "PULL")
        assert answer.plan["retried"] == "PREFILL_ELSEWHERE"
        assert claimed(second.last)
        await case.settled()
        assert case.owner.reads == [case.first]
        assert case.owner.returned == []


async def test_prefill_refuses_connections_and_the_other_can_not_pull(case: Case) -> None:
    async with another(case, Role.PREFILL, bidirectional=False) as second:
        await case.world.prefill.stop()
        answer = await case.next()
        assert (answer.status, answer.plan["prefill"]) == (200, "p2")
        assert (answer.plan["decision"], answer.plan["reason"]) == ("RECOMPUTE", "INCOMPATIBLE")
        assert sent(second.last) == PLAIN_PREFILL
        assert (await case.settled())[case.first] is State.RETAINED


async def test_prefill_refuses_connections_and_there_is_no_other(case: Case) -> None:
    await case.world.prefill.stop()
    answer = await case.next()
    assert answer.status == 502
    assert not case.world.decode.received
    assert await case.settled() == {case.first: State.RETAINED}


async def test_only_one_other_engine_is_tried(case: Case) -> None:
    async with another(case, Role.PREFILL) as second:
        await case.world.prefill.stop()
        await second.stop()
        assert (await case.next()).status == 502
        assert await case.settled() == {case.first: State.RETAINED}


@pytest.mark.parametrize("failure", [0, CUT_AFTER_HEADERS, 500, 503])
async def test_prefill_fails_with_a_handle(case: Case, failure: int) -> None:
    case.world.prefill.script.statuses = [failure]
    answer = await case.next()
    assert (answer.status, answer.plan["retried"]) == (200, "PREFILL_WITHOUT_HANDLE")
    first, second = case.world.prefill.received
    assert claimed(first)
    assert sent(second) == PLAIN_PREFILL
    assert not claimed(second)
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    await case.settled()
    assert case.owner.reads == [case.first]  # once: nobody gives a claim back in doubt
    assert case.owner.returned == []


@pytest.mark.parametrize("failures", [[500, 503], [CUT_AFTER_HEADERS, 500]])
async def test_prefill_fails_with_a_handle_and_without(case: Case, failures: list[int]) -> None:
    case.world.prefill.script.statuses = failures[:]
    answer = await case.next()
    assert (answer.status, error_of(answer)["message"]) == (
        failures[1], f"engine says {failures[1]}",
    )  # fmt: skip
    assert len(case.world.prefill.received) == 2
    assert not case.world.decode.received


async def test_prefill_dies_with_a_handle_and_another_computes(case: Case) -> None:
    async with another(case, Role.PREFILL) as second:

        async def die(received: Received) -> None:
            case.owner.read(received.params["contraflow"]["claim_id"])
            asyncio.get_running_loop().create_task(case.world.prefill.stop())
            await asyncio.Event().wait()

        case.world.prefill.script.before_answer = die
        answer = await case.next()
        assert answer.status == 200
        assert answer.plan["retried"] == "PREFILL_WITHOUT_HANDLE+PREFILL_ELSEWHERE"
        assert sent(second.last) == PLAIN_PREFILL
        await case.settled()
        assert case.owner.reads == [case.first]
        assert case.owner.returned == []


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_scenario_07_prefill_rejects_the_request(case: Case, status: int) -> None:
    case.world.prefill.script.statuses = [status]
    answer = await case.next()
    assert (answer.status, error_of(answer)["message"]) == (status, f"engine says {status}")
    assert len(case.world.prefill.received) == 1
    assert not case.world.decode.received
    await case.settled()
    assert case.owner.returned == []


async def test_prefill_fails_without_a_handle(case: Case) -> None:
    case.world.prefill.script.statuses = [500]
    answer = await case.world.chat()
    assert (answer.status, error_of(answer)["message"]) == (500, "engine says 500")
    assert len(case.world.prefill.received) == 1


async def test_prefill_breaks_off_without_a_handle(case: Case) -> None:
    case.world.prefill.script.statuses = [CUT_AFTER_HEADERS]
    assert (await case.world.chat()).status == 502
    assert len(case.world.prefill.received) == 1


async def test_prefill_is_silent_for_too_long() -> None:
    limits = ClientLimits(header_timeout=0.05)
    async with case_of(msgspec.structs.replace(config_of(), engines=limits)) as case:
        with held(case.world.prefill):
            answer = await case.next()
        assert answer.status == 504
        assert len(case.world.prefill.received) == 1
        await until(lambda: case.world.prefill.last.disconnected, "the leg is aborted")
        await case.settled()
        assert case.owner.returned == []


@pytest.mark.parametrize("outcome", ["DECLINED_MISMATCH", "DECLINED_SMALL", "DECLINED_NO_PROOF"])
async def test_scenario_05_prefill_declines_the_handle(case: Case, outcome: str) -> None:
    case.world.prefill.script.pull = lambda received: Pull(outcome, "d1")
    answer = await case.next()
    assert (answer.status, answer.plan["outcome"]) == (200, outcome)
    assert (await case.settled())[case.first] is State.RETAINED
    assert case.owner.reads == []


async def test_the_pull_fails_and_prefill_computes(case: Case) -> None:
    case.world.prefill.script.pull = lambda received: Pull("FAILED", "d1")
    answer = await case.next()
    assert (answer.status, answer.plan["outcome"]) == (200, "FAILED")
    await case.settled()
    assert case.owner.returned == []


# Between the legs, and decode.


@pytest.mark.parametrize("params", [None, {"remote_engine_id": "p1"}])
async def test_prefill_hands_nothing_over(case: Case, params: dict[str, Any] | None) -> None:
    case.world.prefill.script.params = lambda received: params
    answer = await case.next()
    assert answer.status == 200
    assert sent(case.world.decode.last) == PLAIN_DECODE


async def test_decode_refuses_connections_and_another_gets_the_blocks(case: Case) -> None:
    async with another(case, Role.DECODE) as second:
        await case.world.decode.stop()
        answer = await case.next()
        assert (answer.status, answer.plan["decode"]) == (200, "d2")
        assert answer.plan["retried"] == "DECODE_ELSEWHERE"
        assert second.last.params["remote_engine_id"] == "p1"
        assert second.last.params["contraflow"]["tip"] == TIP.to_json()
        assert list(case.world.app.homes.by_key.values()) == ["d2"]


async def test_decode_refuses_connections_and_the_other_can_not_pull(case: Case) -> None:
    async with another(case, Role.DECODE, compatibility_class="another") as second:
        await case.world.decode.stop()
        answer = await case.next()
        assert (answer.status, answer.plan["decode"]) == (200, "d2")
        assert sent(second.last) == PLAIN_DECODE


async def test_decode_refuses_connections_and_there_is_no_other(case: Case) -> None:
    await case.world.decode.stop()
    answer = await case.next()
    assert answer.status == 502
    assert len(case.world.prefill.received) == 1
    assert case.world.app.homes.by_key == {}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("failure", [0, 500, 503])
async def test_decode_fails_before_its_first_byte(case: Case, failure: int, stream: bool) -> None:
    case.world.decode.script.statuses = [failure]
    answer = await case.next(stream=stream)
    assert (answer.status, answer.plan["retried"]) == (200, "DECODE_WITHOUT_BLOCKS")
    first, second = case.world.decode.received
    assert first.params["remote_engine_id"] == "p1"
    assert sent(second) == PLAIN_DECODE
    told = second.params["contraflow"]
    assert told["session_key"] == first.params["contraflow"]["session_key"]
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert answer.plan["turn"] in await case.settled()  # it retains all the same


async def test_decode_breaks_off_between_headers_and_first_event(case: Case) -> None:
    case.world.decode.script.statuses = [CUT_AFTER_HEADERS]
    answer = await case.next(stream=True)
    assert (answer.status, answer.plan["retried"]) == (200, "DECODE_WITHOUT_BLOCKS")
    assert answer.raw.endswith(b"data: [DONE]\n\n")
    assert sent(case.world.decode.last) == PLAIN_DECODE


ROLE = b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}\n\n'
FAILURE = b'data: {"error": {"message": "lost", "type": "InternalServerError", "code": 500}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("beginning", [[FAILURE, DONE], [ROLE, FAILURE, DONE], [ROLE + FAILURE]])
async def test_decode_begins_its_stream_with_a_failure(case: Case, beginning: list[bytes]) -> None:
    decode = case.world.decode

    def events(received: Received) -> list[bytes]:
        blocks = "remote_engine_id" in received.params
        return beginning if blocks else decode.stream_chunks(None)

    decode.script.events = events
    answer = await case.next(stream=True)
    assert answer.plan["retried"] == "DECODE_WITHOUT_BLOCKS"
    assert answer.raw == b"".join(decode.stream_chunks(None))
    assert len(decode.received) == 2


async def test_decode_breaks_off_after_the_role_of_its_answer(case: Case) -> None:
    decode = case.world.decode

    def events(received: Received) -> list[bytes]:
        blocks = "remote_engine_id" in received.params
        return [ROLE, ROLE] if blocks else decode.stream_chunks(None)

    async def cut(received: Received) -> None:
        if "remote_engine_id" in received.params:
            raise ConnectionError("cut")

    decode.script.events, decode.script.before_end = events, cut
    answer = await case.next(stream=True)
    assert answer.plan["retried"] == "DECODE_WITHOUT_BLOCKS"
    assert answer.raw == b"".join(decode.stream_chunks(None))


async def test_a_stream_that_says_nothing_is_passed_on_as_it_is(case: Case) -> None:
    case.world.decode.script.events = lambda received: [ROLE, ROLE]
    answer = await case.next(stream=True)
    assert (answer.status, answer.raw) == (200, ROLE * 2)


async def test_decode_begins_its_stream_with_an_error_of_the_request(case: Case) -> None:
    refusal = b'data: {"error": {"message": "no", "type": "BadRequestError", "code": 400}}\n\n'
    case.world.decode.script.events = lambda received: [refusal, b"data: [DONE]\n\n"]
    answer = await case.next(stream=True)
    assert answer.raw.startswith(refusal)
    assert len(case.world.decode.received) == 1


async def test_decode_fails_with_blocks_and_without(case: Case) -> None:
    case.world.decode.script.statuses = [500, 503]
    answer = await case.next()
    assert (answer.status, error_of(answer)["message"]) == (503, "engine says 503")
    assert len(case.world.decode.received) == 2
    assert case.world.app.homes.by_key == {}


async def test_decode_dies_with_blocks_and_another_computes(case: Case) -> None:
    async with another(case, Role.DECODE) as second:

        async def die(received: Received) -> None:
            asyncio.get_running_loop().create_task(case.world.decode.stop())
            await asyncio.Event().wait()

        case.world.decode.script.before_answer = die
        answer = await case.next()
        assert answer.status == 200
        assert answer.plan["retried"] == "DECODE_WITHOUT_BLOCKS+DECODE_ELSEWHERE"
        assert sent(second.last) == PLAIN_DECODE


@pytest.mark.parametrize("status", [400, 404, 429])
async def test_scenario_07_decode_rejects_the_request(case: Case, status: int) -> None:
    case.world.decode.script.statuses = [status]
    answer = await case.next()
    assert (answer.status, error_of(answer)["message"]) == (status, f"engine says {status}")
    assert len(case.world.decode.received) == 1
    assert case.world.app.homes.by_key == {}
    await case.settled()
    assert case.owner.release_calls == [[handed_over(case)]]


async def test_scenario_07_decode_can_not_be_reached(case: Case) -> None:
    await case.world.decode.stop()
    assert (await case.next()).status == 502
    await case.settled()
    assert case.owner.release_calls == [[handed_over(case)]]


@pytest.mark.parametrize("statuses", [[], [500], [0], [500, 400]])
async def test_blocks_that_decode_may_have_read_are_left_to_it(
    case: Case, statuses: list[int]
) -> None:
    case.world.decode.script.statuses = statuses
    await case.next()
    await case.settled()
    assert [handed_over(case)] not in case.owner.release_calls


async def test_decode_fails_without_blocks(case: Case) -> None:
    case.world.prefill.script.params = lambda received: None
    case.world.decode.script.statuses = [500]
    answer = await case.next()
    assert (answer.status, error_of(answer)["message"]) == (500, "engine says 500")
    assert len(case.world.decode.received) == 1


async def test_decode_on_a_connection_that_died_idle_is_sent_again_without_blocks_too(
    case: Case,
) -> None:
    case.world.prefill.script.params = lambda received: None
    case.world.decode.script.statuses = [0]  # on the connection of the turn before
    answer = await case.next()
    assert (answer.status, answer.plan["retried"]) == (200, "DECODE_RESENT")


async def test_decode_breaks_off_after_the_headers_of_a_whole_answer(case: Case) -> None:
    case.world.decode.script.statuses = [CUT_AFTER_HEADERS]
    assert (await case.next()).status == 502  # it has generated
    assert len(case.world.decode.received) == 1


async def test_decode_is_silent_for_too_long() -> None:
    config = msgspec.structs.replace(config_of(), decode_timeout_seconds=0.2)
    async with case_of(config) as case:
        with held(case.world.decode):
            assert (await case.next()).status == 504
        await until(lambda: case.world.decode.last.disconnected, "the leg is aborted")
        assert len(case.world.decode.received) == 1


async def test_scenario_20_decode_breaks_off_in_mid_stream(case: Case) -> None:
    async def cut(received: Received) -> None:
        raise ConnectionError("cut")

    case.world.decode.script.between_chunks = cut
    with pytest.raises(aiohttp.ClientPayloadError):
        await case.next(stream=True)
    assert len(case.world.decode.received) == 1
    assert case.world.app.homes.by_key == {}


# The client leaves.


async def test_scenario_06_the_client_leaves_while_acquiring(case: Case) -> None:
    case.owner.hold = asyncio.Event()
    turn = asyncio.create_task(case.next())
    await until(lambda: case.owner.handles() == {case.first: State.CLAIMED}, "the claim is made")
    turn.cancel()
    await until(lambda: bool(case.owner.returned), "the claim comes back")
    assert await case.settled() == {case.first: State.RETAINED}
    assert not case.world.prefill.received


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_scenario_06_the_client_leaves_while_a_leg_waits_for_a_connection(leg: str) -> None:
    limits = ClientLimits(max_connections=1)
    async with case_of(msgspec.structs.replace(config_of(), engines=limits)) as case:
        engine = case.world.prefill if leg == "prefill" else case.world.decode
        with held(engine):
            other = asyncio.create_task(case.world.chat())
            await until(lambda: bool(engine.received), "the connection is taken")
            turn = asyncio.create_task(case.next())
            if leg == "prefill":
                await until(lambda: State.CLAIMED in case.owner.handles().values(), "claimed")
            else:
                await until(lambda: case.world.prefill.received[-1].finished
                            and claimed(case.world.prefill.last), "prefill is done")  # fmt: skip
            turn.cancel()
            await until(lambda: in_flight(case) == 1, "the turn has ended")
            live = await case.settled()
            assert live == ({case.first: State.RETAINED} if leg == "prefill" else {})
            assert len(engine.received) == 1
            other.cancel()
            await asyncio.wait([other])


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_scenario_06_the_client_leaves_while_a_leg_runs(case: Case, leg: str) -> None:
    engine = case.world.prefill if leg == "prefill" else case.world.decode
    with held(engine):
        turn = asyncio.create_task(case.next())
        await until(lambda: bool(engine.received), f"{leg} runs")
        turn.cancel()
        await until(lambda: engine.last.disconnected, f"{leg} is aborted")
    assert bool(case.world.decode.received) is (leg == "decode")
    await case.settled()
    assert case.owner.returned == []  # bytes were sent: the claim ends by itself
    assert case.world.app.homes.by_key == {}


async def test_scenario_06_the_client_leaves_between_first_try_and_second(case: Case) -> None:
    case.world.prefill.script.statuses = [500]
    before = case.world.prefill.script.before_answer
    assert before is not None

    async def second_hangs(received: Received) -> None:
        await before(received)
        if not claimed(received):
            await asyncio.Event().wait()

    case.world.prefill.script.before_answer = second_hangs
    turn = asyncio.create_task(case.next())
    await until(lambda: len(case.world.prefill.received) == 2, "it is sent again")
    turn.cancel()
    await until(lambda: case.world.prefill.last.disconnected, "the second try is aborted")
    await case.settled()
    assert case.owner.returned == []


async def test_scenario_06_the_client_leaves_in_mid_stream(case: Case) -> None:
    async def hold(received: Received) -> None:
        await asyncio.Event().wait()

    case.world.decode.script.between_chunks = hold
    body = {"model": "tiny", "messages": [], "stream": True, **SESSION}
    url = f"{case.world.url}/v1/chat/completions"
    async with case.world.client.post(url, json=body) as response:
        assert (await response.content.readline()).startswith(b"data: ")
        response.close()
    await until(lambda: case.world.decode.last.disconnected, "decode is aborted")
    assert case.world.app.homes.by_key == {}


# What is told of it.


async def test_scenario_02_discarded_tokens_and_denials_are_counted_and_explained(
    case: Case,
) -> None:
    metrics = case.world.app.metrics.registry
    report = Pull("PULLED", "d1", 299, 192, 0, 192, 108)
    case.world.prefill.script.pull = lambda received: report if claimed(received) else None
    case.world.decode.script.statuses = [500]
    pulled = await case.next()
    assert (pulled.plan["offered"], pulled.plan["discarded"]) == ("299", "107")
    case.owner.denial = HandleClaimed("another turn has it")
    await case.next()

    assert metrics.get_sample_value("contraflow_router_discarded_tokens_total") == 107
    retries = {"kind": "DECODE_WITHOUT_BLOCKS"}
    assert metrics.get_sample_value("contraflow_router_retries_total", retries) == 1
    turn = {
        "status": "200", "decision": "RECOMPUTE", "reason": "ACQUIRE_DENIED",
        "denial": "HANDLE_CLAIMED",
    }  # fmt: skip
    assert metrics.get_sample_value("contraflow_router_turns_total", turn) == 1
    for source, tokens in (("pulled", 192), ("local", 0), ("computed", 108)):
        name = "contraflow_router_prompt_tokens_total"
        assert metrics.get_sample_value(name, {"source": source}) == tokens
