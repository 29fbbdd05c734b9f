"""Flags of the sim engine that no engine can be started with are refused, and told why."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest
from tests.unit.connector.test_settings_and_guard import NO_ENDPOINTS

from contraflow.cli.engine_sim import engine_sim
from contraflow.runtime.config import ConfigError
from contraflow.sim.events_zmq import with_rank
from contraflow.sim.main import Flags, engine_options, events_config

EXTRA = "kv_connector_extra_config"


def refused(**config: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        engine_options(Flags(model="m", kv_transfer_config=json.dumps(config)))
    return str(caught.value)


@pytest.mark.parametrize("role", ["", "x", "kv_Both", "both"])
def test_a_kv_role_that_there_is_not(role: str) -> None:
    assert f"kv_role is {role!r}; it must be one of kv_both, kv_consumer" in refused(kv_role=role)


@pytest.mark.parametrize("endpoint", NO_ENDPOINTS)
def test_an_endpoint_that_is_no_url(endpoint: str) -> None:
    told = refused(**{EXTRA: {"contraflow": {"agent": "unix:/a", "endpoint": endpoint}}})
    assert "must be http://host:port" in told


@pytest.mark.parametrize("engine_id", ["", "a/b", "/", "a\nb", "x" * 401])
def test_an_engine_id_that_handles_can_not_be_named_after(engine_id: str) -> None:
    assert "engine_id" in refused(engine_id=engine_id)


@pytest.mark.parametrize(
    ("key", "value"),
    [("bidirectional_kv_xfer", "false"), ("bidirectional_kv_xfer", 1),
     ("bidirectional_kv_xfer", None), ("decoder_kv_blocks_ttl", 1e300),
     ("decoder_kv_blocks_ttl", True), ("kv_lease_duration", -1)],
)  # fmt: skip
def test_values_of_another_kind(key: str, value: Any) -> None:
    assert f"--kv-transfer-config: {key} must be" in refused(**{EXTRA: {key: value}})


@pytest.mark.parametrize("text", [" ", "null", "[]", "7", '"x"', "{", '{"kv_role": null}'])
def test_what_is_no_transfer_config(text: str) -> None:
    with pytest.raises(ConfigError, match="--kv-transfer-config"):
        engine_options(Flags(model="m", kv_transfer_config=text))


@pytest.mark.parametrize(
    ("key", "value"),
    [("publisher", "kafka"), ("buffer_steps", -1), ("hwm", -1), ("hwm", 2**40),
     ("max_queue_size", -1), ("topic", 1)],
)  # fmt: skip
def test_events_that_can_not_be_sent_so(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"--kv-events-config: .*{key}"):
        events_config(json.dumps({"enable_kv_cache_events": True, key: value}))


def test_an_events_endpoint_without_a_port_for_each_rank() -> None:
    assert with_rank("tcp://*:65535", 0) == "tcp://*:65535"
    with pytest.raises(ValueError, match="a port for each rank"):
        with_rank("tcp://*:65535", 1)


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--model", ""), ("--model", " "), ("--served-model-name", ""), ("--host", ""),
     ("--side-channel-host", ""), ("--port", "-1"), ("--port", "65536"), ("--port", "http"),
     ("--side-channel-port", "65536"), ("--block-size", "0"), ("--block-size", "1000000"),
     ("--num-gpu-blocks-override", "-1"), ("--num-gpu-blocks-override", "0"),
     ("--num-gpu-blocks-override", "1000000000"), ("--max-model-len", "1"),
     ("--max-model-len", "99999999999999999999"), ("--max-num-seqs", "0"),
     ("--data-parallel-size", "0"), ("--data-parallel-size", "65")],
)  # fmt: skip
def test_a_flag_out_of_its_range_is_wrong_usage(flag: str, value: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        engine_sim.make_context("engine-sim", ["--model", "m", flag, value])
    assert caught.value.exit_code == 2
    assert flag in caught.value.format_message()
