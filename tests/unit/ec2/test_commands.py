"""``python -m deploy.ec2``, over recorded outputs instead of a node."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from deploy.ec2 import node
from deploy.ec2.__main__ import commands
from deploy.ec2.outputs import Said
from tests.unit.ec2.test_checks import DEVICES, ENV, MISSING, UCX_ENV
from tests.unit.ec2.test_compare import result
from tests.unit.ec2.test_counters import after, device, snapshot
from tests.unit.ec2.test_outputs import read

GB = 10**9
RECORDED = {
    "fi_info": Said(0, read("fi_info_efa")),
    "nvidia-smi": Said(0, read("nvidia_smi_h200")),
    "hostname": Said(0, "10.1.0.5 172.17.0.1 \n"),
    "ucx_info": Said(0, read("ucx_info_srd")),
    node.ENGINE_PYTHON: Said(0, read("agent_efa")),
}


def failures(
    tmp_path: Path,
    env: Mapping[str, str] = ENV,
    gpus: int = 8,
    instead: Mapping[str, Said] | None = None,
) -> list[str]:
    """The names of the checks that refuse. ``instead`` of what was recorded, by command."""
    said = {**RECORDED, **(instead or {})}

    def run(command: Sequence[str]) -> Said:
        return said[command[0]]

    root = tmp_path / "infiniband"
    if not root.exists():
        for name in DEVICES:
            device(tmp_path, name, rdma_read_bytes=0, rx_bytes=0)
    return [one.check for one in node.check(run, env, 16, gpus, root) if not one.good]


def invoke(*arguments: str, text: str = "") -> Result:
    return CliRunner().invoke(commands, list(arguments), input=text)


def test_a_good_node_passes_with_either_backend(tmp_path: Path) -> None:
    assert failures(tmp_path) == []
    assert failures(tmp_path, UCX_ENV) == []


@pytest.mark.parametrize(
    ("tool", "said", "refusing"),
    [
        ("fi_info", Said(61, read("fi_info_none")), ["fi_info"]),
        ("nvidia-smi", Said(9, read("nvidia_smi_failed")), ["gpus"]),
        ("hostname", MISSING, ["VLLM_HOST_IP", "VLLM_NIXL_SIDE_CHANNEL_HOST"]),
        (node.ENGINE_PYTHON, Said(0, read("engine_tcp")), ["NIXL agent"]),
    ],
)
def test_a_tool_that_finds_nothing_is_a_refusal_of_its_own(
    tmp_path: Path, tool: str, said: Said, refusing: list[str]
) -> None:
    assert failures(tmp_path, instead={tool: said}) == refusing


def test_other_gpus_may_be_allowed(tmp_path: Path) -> None:
    assert failures(tmp_path, gpus=0, instead={"nvidia-smi": MISSING}) == []


def test_without_devices_nothing_else_saves_the_node(tmp_path: Path) -> None:
    (tmp_path / "infiniband").mkdir()
    assert "devices" in failures(tmp_path)


def test_commands_run_with_the_engines_environment() -> None:
    run = node.with_environment({"FI_PROVIDER": "efa"})
    assert run(["sh", "-c", "echo $FI_PROVIDER; exit 3"]) == Said(3, "efa\n")
    assert "/opt/amazon/efa/bin" in run(["sh", "-c", "echo $PATH"]).text
    assert run(["contraflow-no-such-tool"]).status == 127


def test_check_refuses_this_machine_and_says_what_to_do(tmp_path: Path) -> None:
    env = tmp_path / "engine.env"
    env.write_text("NIXL_BACKEND=TCP\n")
    done = invoke("check", "--env", str(env))
    assert done.exit_code == 1
    refusals = done.output.count("REFUSED ")
    assert refusals > 3
    assert done.output.count("what to do: ") == refusals


def test_log_judges_the_journal_on_standard_input() -> None:
    assert invoke("log", text=read("engine_efa")).exit_code == 0
    refused = invoke("log", text=read("engine_tcp"))
    assert refused.exit_code == 1
    assert "REFUSED engine log: NIXL took tcp" in refused.output
    assert invoke("log", "--backend", "UCX", text=read("engine_ucx_tcp")).exit_code == 1


def test_moved_compares_two_files(tmp_path: Path) -> None:
    before, good, bad = (tmp_path / f"{name}.json" for name in ("before", "good", "bad"))
    before.write_text(snapshot(7 * GB, 9 * GB, 3 * GB).dump())
    good.write_text(after(GB, GB, GB).dump())
    bad.write_text(after(0, 0, GB).dump())
    assert invoke("moved", str(before), str(good)).exit_code == 0
    refused = invoke("moved", str(before), str(bad))
    assert refused.exit_code == 1
    assert "over TCP" in refused.output
    bad.write_text("{}")
    assert "is no snapshot" in invoke("moved", str(before), str(bad)).output


def test_snapshot_says_what_it_lacks() -> None:
    done = invoke("snapshot", "--engine", "http://127.0.0.1:9")
    assert done.exit_code == 1
    assert "127.0.0.1:9" in done.output


def test_compare_prints_a_table_or_refuses(tmp_path: Path) -> None:
    path = tmp_path / "24k.json"
    path.write_text(json.dumps(result()))
    done = invoke("compare", "--model", "qwen3-32b", str(path))
    assert done.exit_code == 0
    assert "778" in done.output
    path.write_text("{}")
    assert invoke("compare", "--model", "qwen3-32b", str(path)).exit_code == 1


def test_configure_writes_the_files_of_a_role(tmp_path: Path) -> None:
    there = ["--prefill", "10.1.0.5", "--decode", "10.1.0.6", "--into", str(tmp_path)]
    assert invoke("configure", "decode", "--model", "glm-5-fp8", *there).exit_code == 0
    assert "10.1.0.6" in (tmp_path / "engine.env").read_text()
    assert "GLM-5-FP8" in (tmp_path / "decode.env").read_text()


@pytest.mark.parametrize("address", ["127.0.0.1", "node-a", ""])
def test_configure_takes_only_addresses_that_another_node_can_reach(
    tmp_path: Path, address: str
) -> None:
    done = invoke(
        "configure", "decode", "--model", "glm-5-fp8", "--prefill", address, "--decode",
        "10.1.0.6", "--into", str(tmp_path),
    )  # fmt: skip
    assert done.exit_code == 2
    assert list(tmp_path.iterdir()) == []
