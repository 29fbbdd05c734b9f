"""Reading the units of deploy/systemd the way systemd does, as far as they need it."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "systemd"
CONFIG = ROOT / "deploy" / "config"
PORTS = {"vllm-prefill@": "8100", "vllm-decode@": "8200"}
BINARIES = ("/usr/bin/etcd", "/opt/contraflow/bin/contraflow", "/opt/vllm/bin/vllm")
"""What the operator installs."""
_SYSTEM_UNITS = ("sysinit", "basic", "shutdown", "multi-user", "network-online")
_UNITS_OF_TIME = {"s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Unit:
    """A unit of the folder. ``name`` is without ``.service``; a template's ends with ``@``."""

    name: str

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.service"

    @property
    def instance(self) -> str:
        """The instance that tests start; empty unless it is a template."""
        return PORTS.get(self.name, "")

    @property
    def is_engine(self) -> bool:
        return self.name.startswith("vllm-")

    def settings(self) -> dict[str, list[str]]:
        """Values by key, in order, with specifiers expanded."""
        found: dict[str, list[str]] = defaultdict(list)
        for line in re.sub(r"\\\n", " ", self.path.read_text()).splitlines():
            if line and line[0] not in "#;[":
                key, _, value = line.partition("=")
                for specifier, meaning in (("%i", self.instance), ("%H", "node-a"), ("%C", "/c")):
                    value = value.replace(specifier, meaning)
                assert "%" not in value, f"what is this specifier? {line}"
                found[key].append(value)
        return found

    def one(self, key: str) -> str:
        """The only value of ``key``."""
        [value] = self.settings()[key]
        return value

    def seconds(self, key: str) -> float:
        """The only value of ``key``, a time span."""
        match = re.fullmatch(r"(\d+)(s|min|h)", self.one(key))
        assert match is not None, self.one(key)
        return int(match[1]) * _UNITS_OF_TIME[match[2]]

    def commands(self) -> list[list[str]]:
        """The words of each Exec line, run from the examples. KeyError for an unknown variable."""
        environment = self.example_environment()
        lines = [
            line
            for key, values in self.settings().items()
            if key.startswith("Exec")
            for line in values
        ]
        return [_expand(shlex.split(line.removeprefix("-")), environment) for line in lines]

    def example_files(self) -> list[Path]:
        """The examples of its environment files."""
        paths = [Path(value.removeprefix("-")) for value in self.settings()["EnvironmentFile"]]
        names = [path.name for path in paths]
        if self.instance:
            names = [name.replace(self.instance, "PORT") for name in names]
        return [FOLDER / "env" / f"{name}.example" for name in names]

    def example_environment(self) -> dict[str, str]:
        """What the examples of its environment files set, and what systemd does."""
        merged = {"MAINPID": "1"}
        for path in self.example_files():
            merged |= Example.read(path).active
        return merged


@dataclass(frozen=True)
class Example:
    """An example of an environment file: what it sets, and what it only shows."""

    active: dict[str, str]
    shown: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> Example:
        text = path.read_text()

        def assignments(prefix: str) -> dict[str, str]:
            found = re.findall(rf"^{prefix}([A-Z][A-Z0-9_]*)=(.*)$", text, flags=re.M)
            return {name: value.strip('"') for name, value in found}

        return cls(assignments(""), assignments("# "))

    @property
    def names(self) -> set[str]:
        return {*self.active, *self.shown}


def _expand(words: list[str], environment: Mapping[str, str]) -> list[str]:
    expanded: list[str] = []
    for word in words:
        if whole := re.fullmatch(r"\$(\w+)", word):
            expanded += environment[whole[1]].split()
        else:
            expanded.append(re.sub(r"\$\{(\w+)\}", lambda found: environment[found[1]], word))
    return expanded


def verify(units: Mapping[str, str], root: Path) -> str:
    """What ``systemd-analyze verify`` has to say of unit files, by file name, as installed in an
    empty system below ``root`` that has what the operator installs. Empty if all is well: the
    exit status says nothing, for it is 0 also with unknown keys."""
    folder = root / "etc" / "systemd" / "system"
    folder.mkdir(parents=True)
    for name in _SYSTEM_UNITS:
        (folder / f"{name}.target").write_text(f"[Unit]\nDescription={name}\n")
    for name, text in units.items():
        (folder / name).write_text(text)
    for binary in BINARIES:
        path = root / binary.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    started = [name.replace("@.", f"@{PORTS.get(name[:-8], '8100')}.") for name in units]
    done = _analyze("verify", "--man=no", f"--root={root}", *started)
    return done.stderr + done.stdout


def exposure_is_within(path: Path, bound: float) -> bool:
    """Whether ``systemd-analyze security`` rates the unit at ``bound`` or better, of 10."""
    done = _analyze("security", "--offline=true", f"--threshold={round(bound * 10)}", str(path))
    assert "Overall exposure level" in done.stdout, done.stderr
    return done.returncode == 0


def _analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *arguments],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
