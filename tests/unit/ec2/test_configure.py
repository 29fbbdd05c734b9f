"""The files that the recipe writes: services take them, and they say what EFA needs."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from deploy.ec2 import checks, configure
from deploy.ec2.models import MODELS
from deploy.ec2.outputs import environment

from contraflow.agent.config import AgentConfig
from contraflow.directory.config import DirectoryConfig
from contraflow.router.config import RouterConfig
from contraflow.router.costs import Decides
from contraflow.runtime.config import parse

PREFILL, DECODE = "10.1.0.5", "10.1.0.6"
OWN = {"prefill": PREFILL, "decode": DECODE}
UNITS = configure.DEPLOY / "systemd"


def files(role: str, model: str = "qwen3-32b") -> dict[str, str]:
    return configure.files(role, model, MODELS[model], PREFILL, DECODE)


def test_prefill_has_the_services_and_decode_an_agent() -> None:
    assert set(files("decode")) == {"agent.toml", "engine.env", "decode.env"}
    assert set(files("prefill")) == {
        "agent.toml", "engine.env", "prefill.env", "etcd.env", "directory.toml", "router.toml",
        "router-one-way.toml",
    }  # fmt: skip


@pytest.mark.parametrize("role", OWN)
def test_no_address_of_the_examples_is_left(role: str) -> None:
    for name, text in files(role).items():
        settings = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        assert set(re.findall(r"\b10\.\d+\.\d+\.\d+", settings)) <= {PREFILL, DECODE}, name


@pytest.mark.parametrize("role", OWN)
def test_an_agent_is_reached_at_its_node_and_finds_the_directory(role: str) -> None:
    agent = parse(files(role)["agent.toml"], AgentConfig, "agent.toml")
    assert str(agent.advertise_address) == f"{OWN[role]}:7410"
    assert [str(one) for one in agent.directory] == [f"{PREFILL}:7400"]


def test_the_directory_finds_the_etcd_of_its_node() -> None:
    made = files("prefill")
    directory = parse(made["directory.toml"], DirectoryConfig, "directory.toml")
    [endpoint] = directory.etcd.endpoints
    etcd = environment(made["etcd.env"])
    assert etcd["ETCD_LISTEN_CLIENT_URLS"] == f"http://{endpoint}"
    name, _, peer = etcd["ETCD_INITIAL_CLUSTER"].partition("=")
    assert (name, peer) == (etcd["ETCD_NAME"], etcd["ETCD_INITIAL_ADVERTISE_PEER_URLS"])


def test_the_two_routers_differ_in_ports_and_in_what_is_worth_a_pull() -> None:
    made = files("prefill")
    both = parse(made["router.toml"], RouterConfig, "router.toml")
    one_way = parse(made["router-one-way.toml"], RouterConfig, "router-one-way.toml")
    assert (both.decision, one_way.decision) == (Decides.THRESHOLD, Decides.NEVER)
    assert both.recompute_threshold_tokens < 2_000
    ports = {one.listen.port for one in (both, one_way)}
    ports |= {one.grpc_listen.port for one in (both, one_way)}
    assert len(ports) == 4
    assert both.cluster_secret_file == one_way.cluster_secret_file
    assert not both.tenants
    assert not one_way.tenants


@pytest.mark.parametrize("role", OWN)
def test_the_engines_environment_passes_its_own_check(role: str) -> None:
    env = environment(files(role)["engine.env"])
    assert [one for one in checks.settings(env, [OWN[role]]) if not one.good] == []
    assert env["DIRECTORY"] == f"{PREFILL}:7400"
    assert "/opt/amazon/efa/lib" in env["LD_LIBRARY_PATH"]


def test_the_check_would_refuse_the_plain_example() -> None:
    example = (UNITS / "env" / "engine.env.example").read_text()
    assert [one for one in checks.settings(environment(example), ["10.0.0.5"]) if not one.good]


@pytest.mark.parametrize("model", MODELS)
def test_engines_are_of_one_class_and_only_prefill_has_its_prefix_cache_off(model: str) -> None:
    prefill = environment(files("prefill", model)["prefill.env"])
    decode = environment(files("decode", model)["decode.env"])
    assert prefill["MODEL"] == decode["MODEL"]
    assert prefill["MODEL"].startswith("/opt/dlami/nvme/")
    off = "--no-enable-prefix-caching"
    assert prefill["ENGINE_ARGS"].replace(f"{off} ", "") == decode["ENGINE_ARGS"]
    assert off in prefill["ENGINE_ARGS"].split()
    assert f"--served-model-name {model} " in prefill["ENGINE_ARGS"]


@pytest.mark.parametrize("role", configure.PORTS)
def test_the_engine_fits_its_ranks_and_the_longest_prompt(role: str) -> None:
    arguments = environment(files(role)[f"{role}.env"])["ENGINE_ARGS"].split()
    assert arguments[arguments.index("--tensor-parallel-size") + 1] == str(configure.RANKS)
    longest = max(max(one.ttft["one-way"]) for one in MODELS.values()) + 10 * (150 + 300)
    assert int(arguments[arguments.index("--max-model-len") + 1]) > longest


def test_every_variable_that_the_units_read_is_set() -> None:
    for role in OWN:
        made = files(role)
        unit = (UNITS / f"vllm-{role}@.service").read_text()
        known = environment(made["engine.env"]) | environment(made[f"{role}.env"])
        used = set(re.findall(r"\$\{?([A-Z_]+)", unit)) - {"MAINPID"}
        assert used <= set(known)


@pytest.mark.parametrize("role", OWN)
def test_stock_engines_differ_in_connector_and_policies_alone(role: str) -> None:
    drop_in = configure.stock(role)
    section, cleared, command = drop_in.split("\n", 2)
    assert (section, cleared) == ("[Service]", "ExecStart=")
    stock, ours = (
        shlex.split(text.removeprefix("ExecStart=").replace("\\\n", " "))
        for text in (command, exec_start(role))
    )
    at = ours.index("--kv-transfer-config") + 1
    assert stock[:at] == ours[:at]
    assert len(stock) == len(ours)
    mine, theirs = (
        json.loads(words[at].replace("${RETENTION_SECONDS}", "480")) for words in (ours, stock)
    )
    assert theirs["kv_connector"] == "NixlConnector"
    assert theirs["kv_load_failure_policy"] == "fail"
    assert "kv_recompute_threshold" not in theirs["kv_connector_extra_config"]
    del mine["kv_connector_module_path"], mine["kv_connector_extra_config"]["contraflow"]
    for config in (mine, theirs):
        del config["kv_connector"], config["kv_load_failure_policy"]
        config["kv_connector_extra_config"].pop("kv_recompute_threshold", None)
    assert theirs == mine


def exec_start(role: str) -> str:
    unit = (UNITS / f"vllm-{role}@.service").read_text()
    return unit[unit.index("ExecStart=") : unit.index("# Started means")]


def test_a_unit_that_has_changed_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "systemd").mkdir()
    unit = (UNITS / "vllm-decode@.service").read_text()
    changed = unit.replace('"kv_load_failure_policy"', '"kv_failures"')
    (tmp_path / "systemd" / "vllm-decode@.service").write_text(changed)
    monkeypatch.setattr(configure, "DEPLOY", tmp_path)
    with pytest.raises(ValueError, match="kv_load_failure_policy"):
        configure.stock("decode")


def test_an_example_that_has_lost_a_key_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "agent.toml").write_text('listen = "0.0.0.0:7410"\n')
    monkeypatch.setattr(configure, "DEPLOY", tmp_path)
    with pytest.raises(ValueError, match="advertise_address"):
        files("decode")
