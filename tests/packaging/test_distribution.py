"""What the built distribution holds, and what an engine that installs it gets to import."""

from __future__ import annotations

import configparser
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the sdist and the wheel that was built from it."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(dist: Path) -> zipfile.ZipFile:
    (path,) = dist.glob("contraflow-*.whl")
    return zipfile.ZipFile(path)


def dist_info(wheel: zipfile.ZipFile, name: str) -> str:
    (path,) = (
        entry
        for entry in wheel.namelist()
        if entry.split("/", 1)[0].endswith(".dist-info") and entry.split("/", 1)[1] == name
    )
    return wheel.read(path).decode()


def test_the_wheel_holds_both_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "contraflow",
        "contraflow_connector",
    }


@pytest.mark.parametrize("root", ["services/contraflow", "connector/contraflow_connector"])
def test_the_wheel_holds_every_module(wheel: zipfile.ZipFile, root: str) -> None:
    base = (ROOT / root).parent
    modules = {
        str(path.relative_to(base))
        for path in (ROOT / root).rglob("*.py*")
        if "__pycache__" not in path.parts
    }
    assert modules <= set(wheel.namelist())
    assert f"{Path(root).name}/py.typed" in wheel.namelist()


def test_the_command_and_the_engine_plugin_are_entry_points(wheel: zipfile.ZipFile) -> None:
    points = configparser.ConfigParser()
    points.read_string(dist_info(wheel, "entry_points.txt"))
    assert points["console_scripts"]["contraflow"] == "contraflow.cli.main:main"
    assert points["vllm.general_plugins"]["contraflow"] == "contraflow_connector.plugin:register"


def test_an_engine_is_asked_for_grpc_and_protobuf_only(wheel: zipfile.ZipFile) -> None:
    metadata: Message = Parser().parsestr(dist_info(wheel, "METADATA"))
    required = metadata.get_all("Requires-Dist") or []
    base = {line.split(">")[0].split("<")[0] for line in required if "extra ==" not in line}
    assert base == {"grpcio", "protobuf"}
    assert set(metadata.get_all("Provides-Extra") or []) == {"bench", "dev", "engine", "services"}


def test_the_sdist_holds_sources_protos_and_license(dist: Path) -> None:
    (path,) = dist.glob("contraflow-*.tar.gz")
    with tarfile.open(path) as sdist:
        names = {name.split("/", 1)[-1] for name in sdist.getnames()}
    protos = {str(path.relative_to(ROOT)) for path in (ROOT / "proto").rglob("*.proto")}
    assert protos
    assert protos <= names
    assert {"LICENSE", "README.md", "services/contraflow/__init__.py"} <= names


def test_the_connector_imports_only_what_an_engine_has() -> None:
    graph = grimp.build_graph(
        "contraflow", "contraflow_connector", include_external_packages=True, cache_dir=None
    )
    reached = graph.find_upstream_modules("contraflow_connector", as_package=True)
    allowed = {"contraflow_connector", "grpc", "google", "vllm", "torch", "nixl", "zmq"}
    allowed |= set(sys.stdlib_module_names)
    shared = ("contraflow.core", "contraflow.v1", "contraflow.wire")
    strangers = {
        module
        for module in reached - {"contraflow"}
        if module.split(".")[0] not in allowed and not module.startswith(shared)
    }
    assert strangers == set()
