"""Ports, configuration files, engine commands, metrics, folders."""

from __future__ import annotations

import json
import os
import random
import socket
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contraflow.agent.config import AgentConfig
from contraflow.cli.deployment import toml
from contraflow.cli.deployment.addresses import (
    Addresses,
    choose_addresses,
    data_parallel_size,
)
from contraflow.cli.deployment.engine_command import (
    EngineHandle,
    cores_for,
    kv_transfer_config,
    sim_process,
    vllm_process,
)
from contraflow.cli.deployment.errors import SetupMissing
from contraflow.cli.deployment.metrics import PromptTokens, parse_samples, prompt_tokens
from contraflow.cli.deployment.ports import PortAllocator
from contraflow.cli.deployment.process import ProcessSpec
from contraflow.cli.deployment.project import ENGINE_PYTHON_VARIABLE, Project
from contraflow.cli.deployment.services import Services
from contraflow.cli.deployment.spec import DeploymentSpec, EngineKind
from contraflow.core.fleet import Role
from contraflow.directory.config import DirectoryConfig
from contraflow.router.config import RouterConfig
from contraflow.runtime.config import PortInUse, load


def addresses(spec: DeploymentSpec, sockets: Path = Path("/run/s")) -> Addresses:
    return choose_addresses(spec, sockets, PortAllocator())


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=f"127.0.0.1:{port}"):
            addresses(DeploymentSpec(router_port=port))


def test_no_port_is_given_twice() -> None:
    spec = DeploymentSpec(prefills=2, decodes=2, routers=2, with_reference=True)
    chosen = addresses(spec)
    assert chosen.reference is not None
    engines = [*chosen.engines, chosen.reference]
    everything = [
        chosen.etcd, chosen.etcd_peer, chosen.directory, chosen.agent,
        *(address for router in chosen.routers for address in (router.http, router.grpc)),
        *(engine.endpoint for engine in engines),
        *(f":{engine.side_port}" for engine in engines),
    ]  # fmt: skip
    ports = [address.rpartition(":")[2] for address in everything]
    assert len(set(ports)) == len(ports) == 18


def test_random_ports_skip_those_given() -> None:
    allocator = PortAllocator(random.Random(1))
    first = allocator.take()
    with pytest.raises(PortInUse):
        allocator.take_fixed(first)


@pytest.mark.parametrize(
    ("arguments", "ranks"),
    [((), 1), (("--data-parallel-size", "3"), 3), (("--data-parallel-size=3", "--seed", "1"), 3),
     (("--seed", "1", "-dp", "3"), 3), (("--data-parallel-size-local", "3"), 1)],
)  # fmt: skip
def test_each_rank_has_a_side_port_of_its_own(arguments: tuple[str, ...], ranks: int) -> None:
    assert data_parallel_size(arguments) == ranks
    allocator = PortAllocator()
    chosen = choose_addresses(DeploymentSpec(engine_args=arguments), Path("/run/s"), allocator)
    for engine in chosen.engines:
        for rank in range(ranks):
            with pytest.raises(PortInUse):
                allocator.take_fixed(engine.side_port + rank)


def test_names_count_within_a_role() -> None:
    chosen = addresses(DeploymentSpec(prefills=2, decodes=1, routers=2))
    assert [engine.name for engine in chosen.engines] == ["prefill-1", "prefill-2", "decode-1"]
    assert [router.name for router in chosen.routers] == ["router-1", "router-2"]
    assert chosen.reference is None


def test_cores_are_those_of_this_process_and_shared_when_too_few() -> None:
    assert cores_for(3, [4, 6]) == [4, 6, 4]
    assert cores_for(2, [0]) == [0, 0]
    assert set(cores_for(2)) <= os.sched_getaffinity(0)


def engine(role: Role | None) -> EngineHandle:
    return EngineHandle("e-1", role, "http://127.0.0.1:8100", side_port=5600, core=1)


def test_roles_of_engines() -> None:
    spec = DeploymentSpec(retention_ttl=30.0)
    prefill = kv_transfer_config(spec, engine(Role.PREFILL), "unix:/s")
    decode = kv_transfer_config(spec, engine(Role.DECODE), "unix:/s")
    assert (prefill["kv_role"], decode["kv_role"]) == ("kv_both", "kv_consumer")
    extra = decode["kv_connector_extra_config"]
    assert extra["decoder_kv_blocks_ttl"] == 30.0
    assert extra["contraflow"] == {
        "agent": "unix:/s", "endpoint": "http://127.0.0.1:8100", "role": "decode",
    }  # fmt: skip
    assert (
        "contraflow"
        not in kv_transfer_config(spec, engine(Role.DECODE), "")["kv_connector_extra_config"]
    )


def test_an_engine_listens_where_its_endpoint_says() -> None:
    handle = EngineHandle("e-1", Role.DECODE, "http://10.0.0.7:8100", side_port=5600, core=1)
    sim = sim_process(DeploymentSpec(), handle, "unix:/s").command
    for option in ("--host", "--side-channel-host"):
        assert sim[sim.index(option) + 1] == "10.0.0.7"
    real = real_process(DeploymentSpec(), handle)
    assert real.command[real.command.index("--host") + 1] == "10.0.0.7"
    assert real.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.0.0.7"


def test_a_lease_of_unread_blocks_is_the_engines_own_unless_the_spec_has_one() -> None:
    def extra(**fields: float) -> dict[str, Any]:
        config = kv_transfer_config(DeploymentSpec(**fields), engine(Role.PREFILL), "")  # type: ignore[arg-type]
        found: dict[str, Any] = config["kv_connector_extra_config"]
        return found

    assert "kv_lease_duration" not in extra()
    assert extra(kv_lease=6.0)["kv_lease_duration"] == 6.0


def real_process(spec: DeploymentSpec, handle: EngineHandle) -> ProcessSpec:
    return vllm_process(
        spec, handle, "unix:/s", python=Path("py"), model=Path("model"), scratch=Path("/scratch")
    )


def test_an_engine_gets_the_connector_and_environment_of_the_spec_but_the_reference_none() -> None:
    spec = DeploymentSpec(
        connector="Other", connector_module="other", engine_env={"PYTHONPATH": "/here"}
    )
    ours = real_process(spec, engine(Role.PREFILL))
    config = json.loads(ours.command[ours.command.index("--kv-transfer-config") + 1])
    assert (config["kv_connector"], config["kv_connector_module_path"]) == ("Other", "other")
    assert ours.env["PYTHONPATH"] == "/here"
    assert ours.env["CONTRAFLOW_DEMO_CALM"] == "1"
    assert ours.env["TMPDIR"] == "/scratch"
    assert ours.env["VLLM_CPU_OMP_THREADS_BIND"] == "1"
    assert ours.command[ours.command.index("--port") + 1] == "8100"
    plain = real_process(spec, engine(None))
    assert "--kv-transfer-config" not in plain.command
    assert "PYTHONPATH" not in plain.env


def test_the_ranks_of_an_engine_are_not_bound_to_its_core() -> None:
    spec = DeploymentSpec(tensor_parallel=2)
    ranks = real_process(spec, engine(Role.DECODE))
    assert ranks.command[ranks.command.index("--tensor-parallel-size") + 1] == "2"
    assert ranks.env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert ranks.env["OMP_NUM_THREADS"] == "1"
    plain = real_process(spec, engine(None))
    assert "--tensor-parallel-size" not in plain.command
    assert plain.env["VLLM_CPU_OMP_THREADS_BIND"] == "1"


def test_a_sim_engine_is_told_what_a_real_one_is_told() -> None:
    spec = DeploymentSpec(engine=EngineKind.SIM, block_size=16, blocks=64)
    handle = engine(Role.DECODE)
    sim = sim_process(spec, handle, "unix:/s").command
    real = real_process(spec, handle).command
    for option in ("--port", "--block-size", "--num-gpu-blocks-override", "--kv-transfer-config"):
        assert sim[sim.index(option) + 1] == real[real.index(option) + 1]
    assert "--kv-transfer-config" not in sim_process(spec, engine(None), "unix:/s").command


def test_the_services_accept_their_configuration(tmp_path: Path) -> None:
    spec = DeploymentSpec(
        routers=1, claim_start_by=7.0, claim_max_read=3.0, acquire_deadline=1.5,
        api_keys={"acme": ("key-1", "key-2")},
    )  # fmt: skip
    chosen = addresses(spec, tmp_path)
    services = Services(spec, chosen, tmp_path)
    directory, agent = services.directory(), services.agent()
    router = services.router(chosen.routers[0])
    directory_config = load(Path(directory.command[-1]), DirectoryConfig)
    assert [f"http://{endpoint}" for endpoint in directory_config.etcd.endpoints] == [chosen.etcd]
    agent_config = load(Path(agent.command[-1]), AgentConfig)
    assert str(agent_config.link_socket) == chosen.agent_socket
    assert agent_config.claim.max_read_seconds == 3.0
    router_config = load(Path(router.command[-1]), RouterConfig)
    assert f"http://{router_config.listen}" == chosen.routers[0].http
    assert router_config.claim_start_by_seconds == 7.0
    assert router_config.tenants["acme"].api_keys == ("key-1", "key-2")
    assert len({directory.tier, agent.tier, router.tier}) == 3


def test_routers_decide_as_the_spec_says_in_their_order(tmp_path: Path) -> None:
    spec = DeploymentSpec(routers=3, decisions=("never", "always"))
    chosen = addresses(spec)
    services = Services(spec, chosen, tmp_path)
    configs = [
        load(Path(services.router(router).command[-1]), RouterConfig) for router in chosen.routers
    ]
    assert [config.decision for config in configs] == ["never", "always", "threshold"]


def test_configuration_is_for_its_owner_only(tmp_path: Path) -> None:
    spec = DeploymentSpec()
    chosen = addresses(spec, tmp_path)
    services = Services(spec, chosen, tmp_path)
    path = Path(services.router(chosen.routers[0]).command[-1])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert services.cluster_secret not in repr(services)


_TOML_VALUES = st.recursive(
    st.text() | st.booleans() | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda values: st.lists(values, max_size=3),
    max_leaves=5,
)  # fmt: skip
_TABLES = st.recursive(
    st.dictionaries(st.text(), _TOML_VALUES, max_size=3),
    lambda tables: st.dictionaries(st.text(), _TOML_VALUES | tables, max_size=3),
    max_leaves=4,
)


@given(_TABLES.filter(lambda table: _encodable(table)))
def test_toml_comes_back(table: dict[str, Any]) -> None:
    assert tomllib.loads(toml.dumps(table)) == table


def _encodable(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


PAGE = """\
# HELP vllm:prompt_tokens_by_source_total Prompt tokens.
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_cache_hit"} 192.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 107.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 41.0
vllm:nixl_bytes_transferred_sum{engine="0"} 1.31072e+05
vllm:nixl_bytes_transferred_bucket{engine="0",le="+Inf"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
"""


def test_metrics_of_a_prefill_engine() -> None:
    samples = parse_samples(PAGE)
    assert samples["vllm:kv_cache_usage_perc"] == 0.25
    tokens = prompt_tokens(samples)
    assert tokens == PromptTokens(pulled=107, local=192, computed=41, bytes=131072)
    assert tokens.total == 340
    assert tokens - PromptTokens(local=100, computed=1) == PromptTokens(107, 92, 40, 131072)
    assert prompt_tokens({}) == PromptTokens()


def test_what_make_setup_makes_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENGINE_PYTHON_VARIABLE, raising=False)
    project = Project(tmp_path)
    with pytest.raises(SetupMissing, match="make setup"):
        project.engine_python()
    with pytest.raises(SetupMissing, match="checkout"):
        project.model_dir()


def test_another_model_maker_makes_another_folder(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.model_maker.parent.mkdir(parents=True)
    project.model_maker.write_text("one")
    first = project.model_dir()
    project.model_maker.write_text("two")
    assert project.model_dir() != first
