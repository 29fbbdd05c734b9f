"""The units of deploy/systemd: systemd takes them, and what they name is there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from tests.support.systemd_units import (
    BINARIES,
    CONFIG,
    FOLDER,
    ROOT,
    Example,
    Unit,
    exposure_is_within,
    verify,
)

from contraflow.agent.config import AgentConfig
from contraflow.cli.commands import commands
from contraflow.cli.deployment.engine_command import EngineHandle, kv_transfer_config
from contraflow.cli.deployment.spec import DeploymentSpec
from contraflow.core.fleet import Role
from contraflow.router.config import RouterConfig
from contraflow.runtime.config import load
from contraflow.store.etcd_binary import find_etcd

UNITS = [Unit(path.stem) for path in sorted(FOLDER.glob("*.service"))]
ENGINES = [unit for unit in UNITS if unit.is_engine]
DIRECTORY, ROUTER, AGENT, ETCD = (
    Unit(f"contraflow-{name}") for name in ("directory", "router", "agent", "etcd")
)
README = (FOLDER / "README.md").read_text()
# Of 10, which is a unit without any protection. Engines need devices, /sys and writable code.
EXPOSURE, ENGINE_EXPOSURE = 1.5, 2.5
# Variables that these read themselves. A unit names all others.
LIBRARIES = ("CUDA_", "ETCD_", "FI_", "HF_", "NCCL_", "UCX_", "VLLM_")

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="no systemd-analyze: apt-get install systemd",
)


def each(units: list[Unit]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("unit", units, ids=lambda unit: unit.name)


def parse_command(words: list[str]) -> None:
    """AssertionError or UsageError if ``contraflow`` does not take these arguments."""
    command = commands.get_command(click.Context(commands), words[0])
    assert command is not None, words
    command.make_context(words[0], words[1:])


@needs_systemd
def test_systemd_finds_nothing_to_say_about_the_units(tmp_path: Path) -> None:
    assert len(UNITS) == 6
    assert verify({unit.path.name: unit.path.read_text() for unit in UNITS}, tmp_path) == ""


@needs_systemd
@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("WatchdogSec=", "WatchdogSeconds=", "Unknown key"),
        ("TimeoutStartSec=30s", "TimeoutStartSec=soon", "Failed to parse"),
        ("/opt/contraflow/bin/", "/opt/elsewhere/bin/", "is not executable"),
        ("@system-service", "@system-servise", "Unknown system call group"),
    ],
)
def test_the_check_of_the_units_bites(tmp_path: Path, right: str, wrong: str, said: str) -> None:
    text = DIRECTORY.path.read_text()
    assert right in text
    assert said in verify({DIRECTORY.path.name: text.replace(right, wrong)}, tmp_path)


@needs_systemd
@each(UNITS)
def test_the_exposure_is_bounded(unit: Unit) -> None:
    assert exposure_is_within(unit.path, ENGINE_EXPOSURE if unit.is_engine else EXPOSURE)


@needs_systemd
def test_the_bound_of_the_exposure_bites(tmp_path: Path) -> None:
    path = tmp_path / "bare.service"
    path.write_text("[Service]\nExecStart=/bin/true\n")
    assert not exposure_is_within(path, ENGINE_EXPOSURE)


def test_services_order_themselves_but_do_not_need_each_other() -> None:
    before = {unit.name: set(unit.one("After").split()) for unit in UNITS}
    assert all("network-online.target" in names for names in before.values())
    assert "contraflow-etcd.service" in before[DIRECTORY.name]
    assert "contraflow-directory.service" in before[ROUTER.name] & before[AGENT.name]
    for unit in ENGINES:
        assert "contraflow-agent.service" in before[unit.name]
        assert "contraflow-agent.service" in unit.one("Wants").split()
    hard = {"Requires", "Requisite", "BindsTo", "PartOf", "Upholds"}
    assert not [unit.name for unit in UNITS if hard & set(unit.settings())]


@each([DIRECTORY, ROUTER, AGENT])
def test_a_service_is_watched_and_does_not_restart_into_a_wrong_configuration(unit: Unit) -> None:
    assert unit.one("Type") == "notify"
    assert unit.seconds("WatchdogSec") > 0
    assert unit.one("RestartPreventExitStatus") == "2"


def test_etcd_which_feeds_no_watchdog_has_none() -> None:
    assert ETCD.one("Type") == "notify"
    assert "WatchdogSec" not in ETCD.settings()


@each(UNITS)
def test_every_command_is_one_that_exists(unit: Unit) -> None:
    for binary, *arguments in unit.commands():
        assert binary in BINARIES
        assert binary in README
        if binary.endswith("/contraflow"):
            parse_command(arguments)


@each(UNITS)
def test_every_file_that_a_unit_reads_has_an_example(unit: Unit) -> None:
    configs = re.findall(r"--config /etc/contraflow/(\w+\.toml)", unit.path.read_text())
    files = [*unit.example_files(), *(CONFIG / name for name in configs)]
    assert files
    assert [path for path in files if not path.is_file()] == []


def test_every_file_that_an_operator_installs_is_in_the_instructions() -> None:
    files = {path for unit in UNITS for path in unit.example_files()} | {*CONFIG.glob("*.toml")}
    names = {path.name.removesuffix(".env.example") for path in files}
    assert {name for name in names if name not in README} == set()
    assert files == {*(FOLDER / "env").iterdir(), *CONFIG.iterdir()}


def test_the_instructions_give_commands_that_exist() -> None:
    lines = re.findall(r"^ +/opt/contraflow/bin/contraflow (.*)$", README, flags=re.M)
    assert lines
    for line in lines:
        parse_command(line.split())


@each(UNITS)
def test_every_user_is_made_by_sysusers(unit: Unit) -> None:
    made = (FOLDER / "sysusers.d" / "contraflow.conf").read_text()
    assert re.search(rf"^u {unit.one('User')} ", made, flags=re.M)


def test_engines_can_open_the_socket_of_the_agent_and_nobody_else() -> None:
    socket = load(CONFIG / "agent.toml", AgentConfig).link_socket
    assert Path(socket.unix_path).parent == Path("/run") / AGENT.one("RuntimeDirectory")
    assert AGENT.one("RuntimeDirectoryMode") == "0700"
    assert {unit.one("User") for unit in ENGINES} == {AGENT.one("User")}
    assert AGENT.one("User") not in {ROUTER.one("User"), DIRECTORY.one("User"), ETCD.one("User")}


@pytest.mark.parametrize("role", list(Role))
def test_engines_get_the_transfer_configuration_of_a_deployment(role: Role) -> None:
    unit = Unit(f"vllm-{role.value}@")
    serve = unit.commands()[0]
    configured = json.loads(serve[serve.index("--kv-transfer-config") + 1])
    endpoint = f"http://10.0.0.5:{unit.instance}"
    engine = EngineHandle(f"node-a-{unit.instance}", role, endpoint, side_port=0, core=0)
    agent = str(load(CONFIG / "agent.toml", AgentConfig).link_socket)
    expected = kv_transfer_config(DeploymentSpec(), engine, agent)
    del expected["kv_buffer_device"]  # CPU memory there, the device's by default
    assert configured["kv_connector_extra_config"].pop("backends") == ["UCX"]
    assert configured == expected
    assert serve[serve.index("--port") + 1] == unit.instance


@each(UNITS)
def test_variables_of_a_unit_are_set_by_its_files_and_the_other_way_round(unit: Unit) -> None:
    used = set(re.findall(r"\$\{?([A-Z_]+)", unit.path.read_text()))
    known = {name for path in unit.example_files() for name in Example.read(path).names}
    assert used <= set(unit.example_environment())
    assert {name for name in known - used if not name.startswith(LIBRARIES)} == set()


def test_etcd_knows_every_setting_of_its_file() -> None:
    [path] = ETCD.example_files()
    shown = Example.read(path)
    done = subprocess.run(
        [find_etcd().path, "--help"], capture_output=True, text=True, check=True, timeout=30
    )
    flags = set(re.findall(r"^\s*--([a-z-]+)", done.stdout + done.stderr, flags=re.M))
    settings = {name.removeprefix("ETCD_").lower().replace("_", "-") for name in shown.names}
    assert settings <= flags
    assert shown.active["ETCD_DATA_DIR"] == f"/var/lib/{ETCD.one('StateDirectory')}"


def test_vllm_knows_every_variable_of_the_engines_files() -> None:
    found = list(ROOT.glob(".venv-engine/lib/python3*/site-packages/vllm/envs.py"))
    if not found:
        pytest.skip("no vLLM: make env-engine")
    files = {path for unit in ENGINES for path in unit.example_files()}
    names = {name for path in files for name in Example.read(path).names}
    known = set(re.findall(r'^    "(VLLM_\w+)":', found[0].read_text(), flags=re.M))
    assert {name for name in names if name.startswith("VLLM_")} <= known


@each(ENGINES)
def test_the_wait_for_an_engine_is_bounded_by_its_file_first(unit: Unit) -> None:
    assert unit.one("Type") == "exec"
    assert (
        0
        < float(unit.example_environment()["START_SECONDS"])
        < 7000
        < unit.seconds("TimeoutStartSec")
    )


@each(ENGINES)
def test_an_engine_is_drained_before_it_is_stopped(unit: Unit) -> None:
    assert unit.one("ExecStop").startswith("-")  # without a control plane it stops all the same
    drain = unit.commands()[-1]
    configured = Example.read(FOLDER / "env" / "engine.env.example").active["DIRECTORY"]
    endpoint = f"http://10.0.0.5:{unit.instance}"
    assert drain[1:] == ["drain", endpoint, "--directory", configured]
    agent = load(CONFIG / "agent.toml", AgentConfig)
    assert configured in {str(address) for address in agent.directory}


@each(ENGINES)
def test_an_engine_may_finish_its_requests(unit: Unit) -> None:
    grace = re.search(r"--shutdown-timeout (\d+)", unit.example_environment()["ENGINE_ARGS"])
    assert grace is not None
    assert int(grace[1]) < unit.seconds("TimeoutStopSec")


def test_a_router_may_drain_before_it_is_killed() -> None:
    config = load(CONFIG / "router.toml", RouterConfig)
    assert config.drain_deadline_seconds < ROUTER.seconds("TimeoutStopSec")
