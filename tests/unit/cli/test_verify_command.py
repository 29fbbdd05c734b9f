"""``contraflow verify``: what goes with what, and what it says at the end."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from contraflow.cli.commands import commands

_SMALL = ["--turns", "20", "--no-planted", "--jobs", "1"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--skip", "1"], "--skip goes with --replay"),
        (["--shorten"], "--shorten goes with --replay"),
        (["--replay", "1", "--seeds", "5"], "--seeds does not go with --replay"),
        (["--replay", "1", "--no-planted"], "--planted does not go with --replay"),
        (["--replay", "1", "--skip", "a"], "--skip takes numbers"),
    ],
)
def test_what_does_not_go_together_is_said(options: list[str], told: str) -> None:
    result = CliRunner().invoke(commands, ["verify", *options])
    assert (result.exit_code, told in result.output) == (2, True), result.output


def test_a_campaign_tells_violations_and_plants_last() -> None:
    result = CliRunner().invoke(commands, ["verify", "--seeds", "1", "--least", "0", *_SMALL])
    last = result.output.splitlines()[-1]
    assert (result.exit_code, last) == (0, "violations 0 of 20 turns, planted 0 caught 0")


def test_a_campaign_fails_that_has_met_too_little() -> None:
    result = CliRunner().invoke(commands, ["verify", "--seeds", "1", "--least", "5", *_SMALL])
    assert result.exit_code == 1
    _, told = result.output.split("met fewer than 5 times: ")
    assert "STORE_LOST" in told
    assert "handle NEW -> RETAINED" not in told


def test_a_replay_tells_the_faults_and_leaves_out_those_that_are_named() -> None:
    command = ["verify", "--replay", "3", "--turns", "20"]
    whole = CliRunner().invoke(commands, command).output
    less = CliRunner().invoke(commands, [*command, "--skip", "0"]).output
    assert whole.splitlines()[0].startswith("fault   0  ")
    assert less.splitlines()[0] == f"{whole.splitlines()[0]}  (left out)"
    assert whole.splitlines()[-1].startswith("violations 0 of 20 turns, digest ")
