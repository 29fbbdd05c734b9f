"""The scripts of deploy/ec2, with stand-ins for aws, ssh and the measuring commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from deploy.ec2.__main__ import commands
from deploy.ec2.models import TURNS

from contraflow.cli.bench.command import bench as bench_command

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "ec2"
README = (FOLDER / "README.md").read_text()
SCRIPTS = sorted(FOLDER.glob("*.sh"))
LAUNCH = {
    "REGION": "us-east-2", "SUBNET_ID": "subnet-1", "KEY_NAME": "key", "SSH_CIDR": "10.0.0.0/8",
}  # fmt: skip

# Notes each call, and answers by the first file whose name is in it.
AWS = """#!{python}
import json, pathlib, sys
here, call = pathlib.Path(__file__).parent, sys.argv[1:]
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(call) + "\\n")
for kind in ("errors", "answers"):
    for file in sorted((here / kind).iterdir()):
        if file.name in " ".join(call):
            sys.exit(file.read_text()) if kind == "errors" else print(file.read_text())
            sys.exit()
"""


class Aws:
    """The stand-in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for kind in ("answers", "errors"):
            (folder / kind).mkdir()
        program = folder / "aws"
        program.write_text(AWS.format(python=sys.executable))
        program.chmod(0o755)

    def answer(self, command: str, text: str) -> None:
        """Print it to every call that has ``command`` in it."""
        (self.folder / "answers" / command).write_text(text)

    def fail(self, command: str, text: str) -> None:
        """Print it as an error instead, and exit with 1."""
        (self.folder / "errors" / command).write_text(text)

    def calls(self, command: str = "") -> list[list[str]]:
        """The arguments of every call so far, or of those of one command."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        found = list(map(json.loads, lines))
        return [call for call in found if command in call] if command else found

    def run(self, script: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return run(script, *arguments, PATH=f"{self.folder}:{os.environ['PATH']}", **env)


def run(script: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """``PWD`` of the environment is where it runs."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
    return subprocess.run(
        ["bash", FOLDER / script, *arguments],
        env={**kept, **env}, cwd=env.get("PWD"),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture
def aws(tmp_path: Path) -> Aws:
    made = Aws(tmp_path)
    made.answer("describe-subnets", "vpc-1")
    made.answer("describe-security-groups", "None")
    made.answer("create-security-group", "sg-1")
    made.answer("get-parameter", "ami-1")
    made.answer("length(Reservations", "0")
    made.answer("Reservations[].Instances[].InstanceId", "i-1\ti-2")
    return made


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_scripts_can_be_run_and_stop_at_the_first_error(script: Path) -> None:
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text()


@pytest.mark.parametrize("script", ["launch.sh", "clean.sh"])
def test_nothing_is_asked_of_aws_without_yes(aws: Aws, script: str) -> None:
    done = aws.run(script, **LAUNCH)
    assert done.returncode == 2
    assert aws.calls() == []


def test_launching_says_what_it_costs(aws: Aws) -> None:
    assert "USD an HOUR" in aws.run("launch.sh").stderr


@pytest.mark.parametrize("name", LAUNCH)
def test_what_is_missing_is_named(aws: Aws, name: str) -> None:
    left = {key: value for key, value in LAUNCH.items() if key != name}
    done = aws.run("launch.sh", "--yes", **left)
    assert done.returncode == 2
    assert f"{name} is not set" in done.stderr
    assert aws.calls() == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("SSH_CIDR", "0.0.0.0/0"), ("HOURS", "1.5"), ("HOURS", "0"), ("PLACEMENT", "spread")],
)
def test_what_would_be_unsafe_is_refused(aws: Aws, name: str, value: str) -> None:
    done = aws.run("launch.sh", "--yes", **{**LAUNCH, name: value})
    assert done.returncode == 1
    assert value in done.stderr
    assert aws.calls() == []


def test_efa_passes_within_the_group_in_both_directions_and_nothing_but_ssh_from_outside(
    aws: Aws,
) -> None:
    assert aws.run("launch.sh", "--yes", **LAUNCH).returncode == 0
    for direction in ("ingress", "egress"):
        rules = [" ".join(call) for call in aws.calls(f"authorize-security-group-{direction}")]
        assert any("--protocol=-1 --source-group sg-1" in rule for rule in rules)
        outside = [rule for rule in rules if "--cidr" in rule]
        assert all("--port 22 --cidr 10.0.0.0/8" in rule for rule in outside)


def test_two_instances_with_efa_on_every_card_in_one_placement_group(aws: Aws) -> None:
    assert aws.run("launch.sh", "--yes", **LAUNCH, HOURS="3").returncode == 0
    [call] = aws.calls("run-instances")
    text = " ".join(call)
    assert "--count 2" in text
    assert "--placement GroupName=contraflow-reference" in text
    assert [call[call.index("--strategy") + 1] for call in aws.calls("create-placement-group")] == [
        "cluster"
    ]
    cards = re.findall(r"NetworkCardIndex=(\d+),DeviceIndex=(\d),InterfaceType=([a-z-]+)", text)
    assert cards[0] == ("0", "0", "interface")
    assert sorted(int(card) for card, _, kind in cards if kind == "efa-only") == list(range(16))
    assert len({(card, device) for card, device, _ in cards}) == len(cards)
    # It ends itself, and an instance that shuts down is gone, disks included.
    assert "shutdown -h +180" in text
    assert "--instance-initiated-shutdown-behavior terminate" in text
    assert text.count("DeleteOnTermination=true") == len(cards) + 1


def test_placement_as_the_reference_had_it(aws: Aws) -> None:
    assert aws.run("launch.sh", "--yes", **LAUNCH, PLACEMENT="none").returncode == 0
    assert aws.calls("create-placement-group") == []
    [call] = aws.calls("run-instances")
    assert "--placement" not in call


def test_what_is_there_is_used_again(aws: Aws) -> None:
    aws.answer("describe-security-groups", "sg-9")
    aws.answer("length(Reservations", "2")
    for direction in ("ingress", "egress"):
        aws.fail(f"authorize-security-group-{direction}", "(InvalidPermission.Duplicate)")
    aws.fail("create-placement-group", "(InvalidPlacementGroup.Duplicate)")
    done = aws.run("launch.sh", "--yes", **LAUNCH)
    assert done.returncode == 0, done.stderr
    assert aws.calls("create-security-group") == []
    assert aws.calls("run-instances") == []


def test_without_capacity_it_says_what_to_try(aws: Aws) -> None:
    aws.fail("run-instances", "(InsufficientInstanceCapacity)")
    done = aws.run("launch.sh", "--yes", **LAUNCH)
    assert done.returncode == 1
    assert "CAPACITY_BLOCK" in done.stderr
    assert "clean.sh" in done.stderr


@pytest.mark.parametrize(
    "refused", ["authorize-security-group-egress", "create-placement-group", "wait"]
)
def test_a_refusal_of_aws_ends_it(aws: Aws, refused: str) -> None:
    aws.fail(refused, "(UnauthorizedOperation)")
    done = aws.run("launch.sh", "--yes", **LAUNCH)
    assert done.returncode == 1
    assert "[launch] " in done.stderr


def test_a_capacity_block_is_named(aws: Aws) -> None:
    aws.run("launch.sh", "--yes", **LAUNCH, CAPACITY_BLOCK="cr-1")
    [call] = aws.calls("run-instances")
    assert "MarketType=capacity-block" in call
    assert "CapacityReservationTarget={CapacityReservationId=cr-1}" in call


def cleanable(aws: Aws) -> None:
    aws.answer("describe-security-groups", "sg-1")
    aws.answer("describe-placement-groups", "contraflow-reference")
    aws.answer("Reservations[].Instances[].InstanceId", "")


def test_cleaning_ends_ours_alone(aws: Aws) -> None:
    cleanable(aws)
    done = aws.run("clean.sh", "--yes", REGION="us-east-2")
    assert done.returncode == 0, done.stderr
    asked = [call for call in aws.calls() if call[1].startswith("describe-")]
    assert asked
    assert all("Name=tag:Project,Values=contraflow-reference" in call for call in asked)
    assert all("us-east-2" in call for call in aws.calls())
    assert [call[3] for call in aws.calls("delete-security-group")] == ["sg-1"]


def test_cleaning_ends_the_instances_before_their_group(aws: Aws) -> None:
    cleanable(aws)
    aws.answer("Reservations[].Instances[].InstanceId", "i-1\ti-2")
    done = aws.run("clean.sh", "--yes", REGION="us-east-2")
    order = [call[1] for call in aws.calls()]
    assert order.index("terminate-instances") < order.index("delete-security-group")
    [ended] = aws.calls("terminate-instances")
    assert ended[3:5] == ["i-1", "i-2"]
    # The stand-in's instances never go: that is told.
    assert done.returncode == 1
    assert "still there: instance i-1" in done.stderr


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("describe-volumes", "volume"),
        ("describe-network-interfaces", "network interface"),
    ],
)
def test_what_is_left_is_named_and_a_failure(aws: Aws, what: str, named: str) -> None:
    cleanable(aws)
    aws.answer(what, "id-1")
    done = aws.run("clean.sh", "--yes", REGION="us-east-2")
    assert done.returncode == 1
    assert f"still there: {named} id-1" in done.stderr


# In place of the services' Python: counters that rise as told, and results of the bench.
PYTHON = """#!{real}
import json, os, pathlib, sys
arguments, here = sys.argv[1:], pathlib.Path(__file__).parent
if "snapshot" in arguments:
    count = len(list(here.glob("taken-*")))
    (here / f"taken-{{count}}").touch()
    read, nixl = (int(os.environ[name]) for name in ("READ", "NIXL"))
    print(json.dumps({{"read": {{"a": count * read}}, "received": {{"a": count * read}},
                      "nixl": count * nixl}}))
elif "bench" in arguments:
    (here / "bench").write_text(json.dumps(arguments))
    pathlib.Path(arguments[arguments.index("--json") + 1]).write_text("{{}}")
    sys.exit(int(os.environ.get("TURNS_FAIL", "0")))
else:
    os.execv("{real}", ["{real}", *arguments])
"""


@pytest.fixture
def bench_env(tmp_path: Path) -> dict[str, str]:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (
        ("python", PYTHON.format(real=sys.executable)),
        ("ssh", '#!/bin/sh\nshift\nexec sh -c "$*"\n'),
        ("journalctl", "#!/bin/sh\necho journal\n"),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return {
        "PATH": f"{programs}:{os.environ['PATH']}", "PYTHON": str(programs / "python"),
        "LENGTHS": "2k", "READ": "1000", "NIXL": "1000",
    }  # fmt: skip


def bench(tmp_path: Path, env: dict[str, str]) -> tuple[subprocess.CompletedProcess[str], Path]:
    folder = tmp_path / "results"
    return run(
        "bench.sh", "qwen3-32b", "node-b", "10.1.0.5", "10.1.0.6", str(folder), **env
    ), folder


def test_both_legs_are_measured_between_snapshots_of_both_nodes(
    tmp_path: Path, bench_env: dict[str, str]
) -> None:
    done, folder = bench(tmp_path, bench_env)
    arguments = json.loads((tmp_path / "programs" / "bench").read_text())
    options = bench_command.make_context("bench", arguments[arguments.index("bench") + 1 :]).params
    assert [(leg.name, str(leg.origin)) for leg in options["legs"]] == [
        ("one-way", "http://127.0.0.1:8001"),
        ("bidirectional", "http://127.0.0.1:8000"),
    ]
    assert (options["turns"], options["prefix"], options["api"]) == (
        TURNS,
        (2_000, 2_000),
        "tokens",
    )
    defaults = (options["conversations"], options["input"], options["output"], options["clients"])
    assert defaults == (None, None, None, 2)  # the bench's own, which are the reference's
    names = {path.name for path in folder.iterdir()}
    whens = {
        f"2k-{when}-{side}.json" for when in ("before", "after") for side in ("prefill", "decode")
    }
    assert whens <= names
    assert done.stdout.count("ok      moved") == 2
    assert (tmp_path / "results.tar.gz").exists()
    # What the stand-in wrote is no result: compare refuses it.
    assert done.returncode == 1
    assert "2k.json" in done.stderr


def test_figures_that_did_not_go_over_efa_are_put_aside(
    tmp_path: Path, bench_env: dict[str, str]
) -> None:
    done, folder = bench(tmp_path, {**bench_env, "READ": "0"})
    assert done.returncode == 1
    assert "over TCP" in done.stdout
    assert "not of EFA" in done.stderr
    assert not (folder / "2k.json").exists()
    assert (folder / "2k.refused.json").exists()


def test_failed_turns_end_the_benchmark_with_everything_collected(
    tmp_path: Path, bench_env: dict[str, str]
) -> None:
    done, folder = bench(tmp_path, {**bench_env, "TURNS_FAIL": "1"})
    assert done.returncode == 1
    assert "turns failed at 2k" in done.stderr
    assert (folder / "journal-decode.txt").read_text() == "journal\n"
    assert (tmp_path / "results.tar.gz").exists()


def test_a_folder_is_where_the_caller_means_it(tmp_path: Path, bench_env: dict[str, str]) -> None:
    where = ("node-b", "10.1.0.5", "10.1.0.6", "results")
    run("bench.sh", "qwen3-32b", *where, **bench_env, PWD=str(tmp_path))
    assert (tmp_path / "results" / "2k.json").exists()
    assert (tmp_path / "results.tar.gz").exists()


def test_results_are_not_mixed(tmp_path: Path, bench_env: dict[str, str]) -> None:
    (tmp_path / "results").mkdir()
    done, _ = bench(tmp_path, bench_env)
    assert done.returncode == 1
    assert "name another" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "usage"),
        (("router", "qwen3-32b", "10.1.0.5", "10.1.0.6"), "must be prefill or decode"),
    ],
)
def test_serving_refuses_what_it_does_not_know(arguments: tuple[str, ...], said: str) -> None:
    done = run("serve.sh", *arguments)
    assert done.returncode == 1
    assert said in done.stderr


def test_the_instructions_name_scripts_and_commands_that_exist() -> None:
    named = set(re.findall(r"deploy/ec2/(\w+\.sh)", README))
    assert named == {path.name for path in SCRIPTS}
    lines = re.findall(r"python -m deploy\.ec2 (\w+)", README)
    assert lines
    for name in lines:
        assert commands.get_command(click.Context(commands), name) is not None, name


def test_the_instructions_say_that_it_was_not_run_on_ec2() -> None:
    assert "not been run on EC2" in README
