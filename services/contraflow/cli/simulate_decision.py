"""``contraflow simulate --decision``: the fitted decision beside fixed ones and an oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from contraflow.cli.operate.output import print_json, print_table
from contraflow.sim.decision import (
    KNOWN_FROM,
    MOST_EXPLORED,
    MOST_OVER_ORACLE,
    MOST_SPENT,
    RULES,
    SEEDS,
    TURNS,
    Exploring,
    Length,
    conditions,
    judge,
    tie,
)

_COLUMNS = (
    "model", "load or profile", "prompt#", "turns#", "oracle#", "fitted#",
    *(f"{name}#" for name in RULES), "over oracle#", "over best#", "",
)  # fmt: skip
_SPENT = ("model", "load or profile", "before#", "explored#", "cost#", "")


def decision(*, as_json: bool) -> int:
    """Print what turns took; the exit status: 1 if something does not hold."""
    lengths: list[Length] = []
    spent: list[Exploring] = []
    for condition in conditions():
        of_condition, exploring = judge(condition)
        lengths += of_condition
        spent.append(exploring)
    if as_json:
        print_json({
            "seeds": [SEEDS[0], SEEDS[-1]], "turns": TURNS, "judged_from_turn": KNOWN_FROM,
            "lengths": [*map(_object, lengths)], "exploring": [*map(_spent_object, spent)],
        })  # fmt: skip
    else:
        click.echo(
            f"prefill leg in ms, mean of {len(SEEDS)} links, turns {KNOWN_FROM} to {TURNS}; "
            "true costs of what was decided\n"
        )
        print_table(_COLUMNS, [*map(_cells, lengths)])
        click.echo(f"\nexploring, at worst; before turn {KNOWN_FROM} as a number\n")
        print_table(_SPENT, [*map(_spent_cells, spent)])
        _tell(lengths, spent)
    return 1 if _failed(lengths, spent) else 0


def _failed(lengths: Sequence[Length], spent: Sequence[Exploring]) -> int:
    return sum(not one.holds for one in lengths) + sum(not one.holds for one in spent)


def _verdict(holds: bool) -> str:
    return "" if holds else "FAILS"


def _cells(one: Length) -> tuple[str, ...]:
    times = (one.oracle, one.fitted, *one.rules.values())
    return (
        one.condition.model,
        one.condition.name,
        "all" if one.shortest is None else f"{one.shortest:,}+",
        f"{one.turns:,}",
        *(f"{seconds * 1000:,.1f}" for seconds in times),
        f"{one.over_oracle:+.2%}",
        f"{one.over_best_rule:+.2%}",
        _verdict(one.holds),
    )


def _spent_cells(one: Exploring) -> tuple[str, ...]:
    shares = f"{one.share:.2%}", f"{one.spent:.2%}"
    return one.condition.model, one.condition.name, str(one.before), *shares, _verdict(one.holds)


def _object(one: Length) -> dict[str, Any]:
    return {
        "model": one.condition.model,
        "condition": one.condition.name,
        "prompt_tokens_from": one.shortest,
        "turns": one.turns,
        "oracle_seconds": one.oracle,
        "fitted_seconds": one.fitted,
        "rule_seconds": dict(one.rules),
        "over_oracle": one.over_oracle,
        "over_best_rule": one.over_best_rule,
        "tie": tie(one.condition.load.noise, one.turns),
        "holds": one.holds,
    }


def _spent_object(one: Exploring) -> dict[str, Any]:
    return {
        "model": one.condition.model,
        "condition": one.condition.name,
        "explored_before": one.before,
        "explored_share": one.share,
        "cost_share": one.spent,
        "holds": one.holds,
    }


def _tell(lengths: Sequence[Length], spent: Sequence[Exploring]) -> None:
    parts = [one for one in lengths if one.shortest is not None]
    at_worst = max(one.over_oracle for one in parts)
    strictly = sum(one.over_best_rule <= 0 for one in parts)
    ties = [one for one in parts if one.over_best_rule > 0 and one.tied]
    others = [one for one in parts if not one.tied]
    click.echo(
        f"\nover the oracle: at most {at_worst:.2%} (allowed {MOST_OVER_ORACLE:.0%})\n"
        f"lengths, {len(parts)}: {strictly} take no longer than with the best of six fixed rules; "
        f"{len(ties)} at most {_most(ties):.2%} longer, less than a standard error of measuring "
        f"them all; {len(others)} at most {_most(others):.2%}\n"
        f"explored: at most {max(one.share for one in spent):.2%} of turns "
        f"(allowed {MOST_EXPLORED:.0%}, one before turn {KNOWN_FROM}) "
        f"at {max(one.spent for one in spent):.2%} of the time (allowed {MOST_SPENT:.0%})\n"
        f"failed: {_failed(lengths, spent)}"
    )


def _most(lengths: Sequence[Length]) -> float:
    return max((one.over_best_rule for one in lengths), default=0.0)
