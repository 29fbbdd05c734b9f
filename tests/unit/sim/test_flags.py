"""From vLLM's flags to the options of an engine."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from typing import Any

import pytest

from contraflow.cli.commands import commands
from contraflow.cli.deployment.engine_command import EngineHandle, kv_transfer_config
from contraflow.cli.deployment.spec import DeploymentSpec
from contraflow.core.fleet import Role
from contraflow.runtime.config import ConfigError
from contraflow.sim.main import Flags, engine_options, events_config


@pytest.mark.parametrize("role", list(Role))
def test_the_config_of_real_engines_is_understood(role: Role) -> None:
    spec = DeploymentSpec()
    engine = EngineHandle("e1", role, "http://127.0.0.1:8100", 5600, 0)
    config = kv_transfer_config(spec, engine, "unix:/run/agent.sock")
    (options,) = engine_options(Flags(model="m", kv_transfer_config=json.dumps(config)))

    assert not options.reference
    assert (options.engine_id, options.role) == ("e1", role)
    assert options.kv_role == config["kv_role"]
    assert (options.agent, options.endpoint) == ("unix:/run/agent.sock", engine.endpoint)
    assert options.bidirectional
    assert options.retention_ttl == spec.retention_ttl


def test_without_a_config_the_engine_has_no_connector() -> None:
    (options,) = engine_options(Flags(model="m"))
    assert options.reference
    assert options.served_model_names == ("m",)


def test_scenario_15_a_rank_whose_port_there_can_not_be_is_refused() -> None:
    flags = Flags(model="m", side_channel_port=65535, kv_transfer_config="{}")
    assert len(engine_options(flags)) == 1
    with pytest.raises(ConfigError, match="rank 1 would need port 65536"):
        engine_options(replace(flags, data_parallel_size=2))


def test_scenario_15_each_rank_is_an_engine_of_its_own() -> None:
    config = json.dumps({"engine_id": "d1", "kv_role": "kv_consumer"})
    first, second = engine_options(
        Flags(model="m", data_parallel_size=2, kv_transfer_config=config)
    )
    assert (first.engine_id, second.engine_id) == ("d1_dp0", "d1_dp1")
    assert (first.dp_rank, second.dp_rank) == (0, 1)
    assert not first.bidirectional
    assert first.role == Role.DECODE


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("{", "--kv-transfer-config"),
        ('{"engine_id": 5}', "engine_id"),
        ('{"kv_connector_extra_config": {"contraflow": {"agnet": "x"}}}', "agnet"),
        ('{"kv_connector_extra_config": {"contraflow": {"agent": "x"}}}', "endpoint is needed"),
        ('{"kv_connector_extra_config": {"decoder_kv_blocks_ttl": 0}}', "decoder_kv_blocks_ttl"),
        ('{"kv_connector_extra_config": {"kv_lease_duration": "1"}}', "kv_lease_duration"),
    ],
)
def test_a_wrong_transfer_config_is_named(config: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        engine_options(Flags(model="m", kv_transfer_config=config))


@pytest.mark.parametrize("config", ["", "{}", '{"enable_kv_cache_events": false}'])
def test_events_are_off_unless_they_are_enabled(config: str) -> None:
    assert events_config(config) is None


def test_a_wrong_events_config_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--kv-events-config.*endpont"):
        events_config('{"endpont": "tcp://*:1"}')


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--profile", "x"], "profile must be one of instant"),
        (["--vllm-version", "0.1"], "0.32"),
        (["--log-level", "x"], "--log-level must be one of"),
        (["--kv-transfer-config", "{"], "--kv-transfer-config"),
        (
            ["--kv-events-config", '{"enable_kv_cache_events": true, "endpoint": "udp://x"}'],
            "udp://x",
        ),
    ],
)
def test_a_wrong_flag_is_one_line_and_exit_status_2(
    capfd: pytest.CaptureFixture[str], flags: list[str], says: str
) -> None:
    assert exit_of(["--port", "0", *flags]) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert says in error


def test_a_port_that_is_taken_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert exit_of(["--port", port]) == 2
        side = ["--kv-transfer-config", "{}", "--side-channel-port", port]
        assert exit_of(["--port", "0", *side]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(port in line for line in lines)


def test_flags_of_vllm_that_mean_nothing_here_are_taken(capfd: pytest.CaptureFixture[str]) -> None:
    ignored = ["--dtype", "float32", "--enforce-eager", "--enable-auto-tool-choice",
               "--tool-call-parser", "hermes", "--disable-uvicorn-access-log"]  # fmt: skip
    assert exit_of([*ignored, "--profile", "x"]) == 2
    assert "profile" in capfd.readouterr().err


def exit_of(flags: list[str]) -> Any:
    with pytest.raises(SystemExit) as caught:
        commands(["engine-sim", "--model", "m", *flags])
    return caught.value.code
