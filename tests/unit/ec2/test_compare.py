"""Results of the bench beside the published figures; what is not comparable is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from deploy.ec2 import compare
from deploy.ec2.compare import NotComparable
from deploy.ec2.models import BIDIRECTIONAL, MODELS, ONE_WAY

from contraflow.bench.multiturn.measured import Failure, Results, Sample, TurnId
from contraflow.bench.multiturn.report import document
from contraflow.bench.multiturn.shapes import REFERENCE, reference
from contraflow.bench.multiturn.workload import Workload

QWEN = MODELS["qwen3-32b"]
Report = dict[str, str]


def workload(prefix: tuple[int, int], conversations: int, turns: int) -> Workload:
    sizes = replace(REFERENCE, conversations=conversations, turns=turns, prefix=prefix)
    return reference(sizes, seed=0)


def result(
    prefix: tuple[int, int] = (24_000, 24_000),
    reports: dict[str, Report] | None = None,
    legs: tuple[str, ...] = (ONE_WAY, BIDIRECTIONAL),
    change: Callable[[Results], None] = lambda _: None,
    conversations: int = 1,
    turns: int = 5,
) -> dict[str, Any]:
    """As ``contraflow bench --json`` writes it, made by its own code. Turns take 800 ms one-way,
    and 400 ms bidirectional but for the first. Intervals need two conversations."""
    told = reports or {
        ONE_WAY: {"pulled": "0", "local": "0", "computed": "24450"},
        BIDIRECTIONAL: {"pulled": "24300", "local": "0", "computed": "150"},
    }
    seconds = {ONE_WAY: 0.8, BIDIRECTIONAL: 0.4}
    work, results = workload(prefix, conversations, turns), Results()
    for conversation in work.conversations:
        for turn in range(1, turns + 1):
            for leg in legs:
                results.samples.append(
                    Sample(
                        leg, TurnId(conversation.number, 0, turn), 24_000, 300,
                        seconds[leg] if turn > 1 else 0.8, 0.02, 7.0, report=told[leg],
                    )
                )  # fmt: skip
    change(results)
    reads = {"vllm:nixl_xfer_time_seconds_sum": 3.0, "vllm:nixl_xfer_time_seconds_count": 24.0}
    head = {"workload": asdict(work), "interrupted": False, "counters": {"prefill": reads}}
    whole: dict[str, Any] = json.loads(json.dumps({**head, **document(results, legs, 0)}))
    return whole


def test_all_turns_count_as_they_did_in_what_was_published() -> None:
    one = compare.measured(result())
    assert one.prefix == 24_000
    assert one.ttft[ONE_WAY][0] == pytest.approx(800)
    assert one.ttft[BIDIRECTIONAL][0] == pytest.approx((800 + 4 * 400) / 5)
    assert one.ratio == pytest.approx(800 / 480)
    assert one.transfer == pytest.approx(125)


def test_without_counters_there_is_no_transfer() -> None:
    pages: list[dict[str, dict[str, float]]] = [{}, {"prefill": {}}]
    for counters in pages:
        one = compare.measured({**result(), "counters": counters})
        assert one.transfer is None
        assert len(compare.table([one], QWEN)) == 3


def test_the_table_has_what_was_published_beside_it() -> None:
    rows = compare.table([compare.measured(result(conversations=2))], QWEN)
    assert all(len(row) == len(compare.COLUMNS) for row in rows)
    assert rows == [
        ("24,000", "TTFT one-way", "800", "800–800", "778", "1.03"),
        ("24,000", "TTFT bidirectional", "480", "480–480", "460", "1.04"),
        ("24,000", "ratio", "1.67", "", "1.69", "0.99"),
        ("24,000", "transfer", "125", "", "130", "0.96"),
    ]


def test_lengths_of_which_nothing_was_published_are_shown_in_order() -> None:
    found = [compare.measured(result((length, length))) for length in (24_000, 8_000)]
    rows = compare.table(found, QWEN)
    assert [row[0] for row in rows] == ["8,000"] * 4 + ["24,000"] * 4
    assert rows[0][-2:] == ("–", "–")


def test_a_mixture_of_lengths_is_refused() -> None:
    with pytest.raises(NotComparable, match="mixes 2 lengths"):
        compare.measured(result((2_000, 24_000), conversations=2))


def test_other_numbers_of_turns_are_refused() -> None:
    with pytest.raises(NotComparable, match="--turns 5"):
        compare.measured(result(turns=10))


def test_failed_or_interrupted_runs_are_refused() -> None:
    def fail(results: Results) -> None:
        results.failures.append(Failure(ONE_WAY, TurnId(0, 0, 2), "500", 1))

    with pytest.raises(NotComparable, match="1 turns failed"):
        compare.measured(result(change=fail))
    with pytest.raises(NotComparable, match="interrupted"):
        compare.measured({**result(), "interrupted": True})


def test_a_missing_leg_is_refused() -> None:
    with pytest.raises(NotComparable, match="no leg bidirectional"):
        compare.measured(result(legs=(ONE_WAY,)))


NOTHING = {"pulled": "0", "local": "0", "computed": "24450"}
PULLED = {"pulled": "24300", "local": "0", "computed": "150"}
CACHED = {"pulled": "0", "local": "24000", "computed": "450"}


@pytest.mark.parametrize(
    ("one_way", "both", "said"),
    [
        (PULLED, PULLED, "wrong router"),
        (NOTHING, NOTHING, "pulled nothing"),
        (CACHED, PULLED, "own cache"),
        (NOTHING, {**PULLED, "local": "64"}, "own cache"),
        ({}, PULLED, "does not tell"),
    ],
)
def test_legs_that_are_not_what_they_say_are_refused(
    one_way: Report, both: Report, said: str
) -> None:
    with pytest.raises(NotComparable, match=said):
        compare.measured(result(reports={ONE_WAY: one_way, BIDIRECTIONAL: both}))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"workload": 3}'])
def test_what_is_no_result_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "2k.json"
    path.write_text(text)
    with pytest.raises(NotComparable, match=r"2k\.json"):
        compare.read(path)


def test_a_result_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "24k.json"
    path.write_text(json.dumps(result()))
    assert compare.read(path) == compare.measured(result())
