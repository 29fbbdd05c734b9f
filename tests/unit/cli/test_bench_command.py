"""``contraflow bench``: its options, its errors, what it writes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.scripted_openai import Received, ScriptedServer, refuses
from tests.support.wait import until

from contraflow.bench.multiturn.endpoint import Leg
from contraflow.bench.multiturn.workload import Conversation, Turn, Workload
from contraflow.cli.bench import run
from contraflow.cli.bench.counters import Page, PageUnreadable, risen
from contraflow.cli.bench.run import BenchFailed, Plan, measure
from contraflow.cli.commands import commands
from contraflow.runtime.clock import SystemClock
from contraflow.web import Responder

WORKLOAD = Workload("x", tuple(Conversation(n, 40, (Turn(6, 2),) * 3) for n in range(2)))
WARM = 2 + 2  # requests before anything counts: to measure words, to warm up


@pytest.fixture
async def servers() -> AsyncIterator[list[ScriptedServer]]:
    log: list[Received] = []
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(ScriptedServer(name, log).serving())
            for name in ("a", "b")
        ]


def plan(servers: list[ScriptedServer], **fields: Any) -> Plan:
    legs = tuple(Leg(server.name, server.origin) for server in servers)
    return Plan(WORKLOAD, legs, **fields)


async def test_everything_is_measured_told_and_written(
    servers: list[ScriptedServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "result.json"
    page = Page("P", f"{servers[0].origin}/metrics")
    assert await measure(plan(servers, json=file, pages=(page,), marker="m"), SystemClock()) == 0
    whole = json.loads(file.read_text())
    assert len(whole["samples"]) == 12  # the warm-up's are not among them
    assert len(servers[0].log) == 12 + 2 * WARM
    assert [leg["model"] for leg in whole["legs"]] == ["model-of-a", "model-of-b"]
    assert whole["failed"]["b"] == {"answered": 6, "failed": 0, "not_sent": 0}
    assert whole["counters"] == {"P": {"vllm:generation_tokens_total": 6}}
    assert (whole["interrupted"], whole["marker"]) == (False, "m")
    printed = capsys.readouterr().out
    assert "a ÷ b" in printed
    assert "generation_tokens_total  6" in printed
    words = servers[0].log[-1].said[0].split()
    assert len(words) == 20 + 3  # two tokens a word, as this server counts


async def test_failed_turns_are_told_and_are_the_status(
    servers: list[ScriptedServer], capsys: pytest.CaptureFixture[str]
) -> None:
    def late(received: Received, responder: Responder) -> bool:
        second, warm_up = len(received.said) == 3, received.session.endswith("--1")
        return second and not warm_up and refuses(responder)

    servers[1].meet = late
    assert await measure(plan(servers), SystemClock()) == 1
    printed = capsys.readouterr().out
    assert "FAILED on b: 2 turns, and 2 that came after them not sent" in printed
    assert "2 × " in printed
    assert "no engine" in printed


async def test_a_server_that_refuses_ends_it_before_anything_counts(
    servers: list[ScriptedServer],
) -> None:
    servers[1].meet = lambda _, responder: refuses(responder)
    with pytest.raises(BenchFailed, match=r"(?s)b fails .*no engine.*what to do"):
        await measure(plan(servers), SystemClock())


async def test_a_prompt_that_is_too_long_is_refused_at_once(servers: list[ScriptedServer]) -> None:
    servers[0].max_model_len = WORKLOAD.longest
    servers[1].max_model_len = WORKLOAD.longest - 1
    with pytest.raises(BenchFailed, match=r"b takes 63 tokens.*64 .*shorten --prefix"):
        await measure(plan(servers), SystemClock())
    assert not servers[0].log


async def test_plots_are_refused_before_anything_is_sent(
    servers: list[ScriptedServer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(BenchFailed, match="pip install"):
        await measure(plan(servers, plots=tmp_path), SystemClock())
    assert not servers[0].log


async def test_metrics_that_can_not_be_read_are_refused(servers: list[ScriptedServer]) -> None:
    page = Page("P", f"{servers[0].origin}/nowhere")
    with pytest.raises(PageUnreadable, match="correct --metrics or leave it out"):
        await measure(plan(servers, pages=(page,)), SystemClock())


async def test_cancelled_it_tells_what_it_has(
    servers: list[ScriptedServer], tmp_path: Path
) -> None:
    file, log = tmp_path / "result.json", servers[0].log

    def stop(received: Received, responder: Responder) -> bool:
        if len(log) == 2 * WARM + 4:
            servers[0].gate.clear()
            servers[1].gate.clear()
        return False

    servers[0].meet = servers[1].meet = stop
    running = asyncio.create_task(measure(plan(servers, json=file, clients=1), SystemClock()))
    await until(lambda: len(log) == 2 * WARM + 5, "a fifth turn")
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    whole = json.loads(file.read_text())
    assert (whole["interrupted"], len(whole["samples"])) == (True, 4)


def test_counters_are_what_has_risen() -> None:
    before = {"P": {"a": 1.0, "b": 2.0}}
    after = {"P": {"a": 4.0, "b": 2.0, "new_total": 3.0, "h_bucket": 9.0, "a_created": 8.0}}
    assert risen(before, after) == {"P": {"a": 3.0, "new_total": 3.0}}


def planned(monkeypatch: pytest.MonkeyPatch, *words: str) -> Plan:
    plans: list[Plan] = []

    def keep(made: Plan) -> int:
        plans.append(made)
        return 0

    monkeypatch.setattr(run, "run", keep)
    result = CliRunner().invoke(commands, ["bench", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return plans[0]


def test_options_become_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    made = planned(
        monkeypatch, "--leg", "a=http://h:1/v1/", "--leg", "b=http://h:2", "--fresh-salt", "b",
        "--conversation-id", "a", "--primed", "b",
        "--prefix", "1k-3k", "--conversations", "3", "--turns", "2", "--input", "5",
        "--output", "7", "--metrics", "http://h:3", "--metrics", "D=http://h:4/m",
    )  # fmt: skip
    assert [
        (str(leg.origin), leg.fresh_salt, leg.conversation_id, leg.primed) for leg in made.legs
    ] == [
        ("http://h:1", False, True, False), ("http://h:2", True, False, True),
    ]  # fmt: skip
    assert [page.label for page in made.pages] == ["http://h:3", "D"]
    assert sorted(one.prefix_tokens for one in made.workload.conversations) == [1000, 2000, 3000]
    assert {one.turns for one in made.workload.conversations} == {(Turn(5, 7),) * 2}


def test_the_default_is_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    made = planned(monkeypatch, "--leg", "a=http://h:1")
    assert (made.workload.name, made.workload.turn_count, made.clients) == ("reference", 50, 2)
    again = planned(monkeypatch, "--leg", "a=http://h:1", "--seed", "1")
    assert made.workload != again.workload


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "--leg"),
        (["--leg", "http://h:1"], "is not NAME=URL"),
        (["--leg", "a=https://h"], "put a local proxy before it"),
        (["--leg", "a=http://h:1", "--leg", "a=http://h:2"], "two legs are called 'a'"),
        (["--leg", "a=http://h:1", "--fresh-salt", "b"], "no --leg is called so"),
        (["--leg", "a=http://h:1", "--prefix", "4k-2k"], "begins above its end"),
        (["--leg", "a=http://h:1", "--prefix", "long"], "no number of tokens"),
        (["--leg", "a=http://h:1", "--think", "1"], "goes with --shape agent"),
        (["--leg", "a=http://h:1", "--file", "w.json", "--turns", "3"], "does not go with --file"),
        (["--leg", "a=http://h:1", "--file", "w.json"], "`filetype` must be"),
        (["--leg", "a=http://h:1", "--json", "no/such/x.json"], "make it first"),
        (["--leg", "a=http://h:1", "--marker", "a b"], "use up to 40 letters"),
        (["--leg", "a=http://h:1", "--metrics", "P=h:3"], "does not start with http://"),
    ],
)
def test_wrong_usage_is_told_with_what_to_do(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.json").write_text("{}")
    result = CliRunner().invoke(commands, ["bench", *words])
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())
