"""What the tools on a node print, as values. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_UCX_FIELD = re.compile(r"^#\s+(Transport|Device|Type): (\S+)")
_RAILS = re.compile(r"(\d+)(?: \w+)? rails using provider(?:=|: )(\w+)")
_UCX_LANES = re.compile(r"UCX\s+INFO\b.*\binter-node cfg#\d+ (.+)")
_LANE = re.compile(r"([a-z]\w*)/([\w.:-]+)")
_ASSIGNMENT = re.compile(r"^([A-Za-z_]\w*)=(.*)$")


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed, both streams, and its exit status: 127 if there is none such."""

    status: int
    text: str

    @property
    def last_line(self) -> str:
        """The last that is not blank."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        return lines[-1] if lines else "nothing"


@dataclass(frozen=True, slots=True)
class Fabric:
    """One block of ``fi_info``. ``device`` as in /sys/class/infiniband."""

    provider: str
    fabric: str
    device: str
    endpoint: str


def fabrics(text: str) -> list[Fabric]:
    """The blocks of ``fi_info``; none where it found nothing."""
    blocks: list[dict[str, str]] = []
    for line in text.splitlines():
        name, found, value = line.strip().partition(": ")
        if found and name == "provider":
            blocks.append({})
        if found and blocks:
            blocks[-1][name] = value.strip()
    return [
        Fabric(
            block["provider"],
            block.get("fabric", ""),
            re.sub(r"-(rdm|dgrm)$", "", block.get("domain", "")),
            block.get("type", ""),
        )
        for block in blocks
    ]


@dataclass(frozen=True, slots=True)
class Transport:
    """One transport of ``ucx_info -d``. ``device`` without its port."""

    name: str
    device: str
    kind: str


def transports(text: str) -> list[Transport]:
    """The transports of ``ucx_info -d``."""
    found: list[dict[str, str]] = []
    for line in text.splitlines():
        if field := _UCX_FIELD.match(line):
            if field[1] == "Transport":
                found.append({})
            if found:
                found[-1].setdefault(field[1], field[2])
    return [
        Transport(one["Transport"], one.get("Device", "").partition(":")[0], one.get("Type", ""))
        for one in found
    ]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One line of ``nvidia-smi --query-gpu=name,driver_version --format=csv,noheader``."""

    name: str
    driver: str


def gpus(text: str) -> list[Gpu]:
    """The GPUs; an error message of nvidia-smi has none."""
    lines = (line.split(", ") for line in text.splitlines())
    return [Gpu(*map(str.strip, fields)) for fields in lines if len(fields) == 2]


@dataclass(frozen=True, slots=True)
class Rails:
    """What one NIXL agent reports of its LIBFABRIC backend: one rail is one device."""

    count: int
    provider: str


def rails(log: str) -> list[Rails]:
    """One for each agent that told; NIXL tells from NIXL_LOG_LEVEL=INFO on."""
    return [Rails(int(count), provider) for count, provider in _RAILS.findall(log)]


def ucx_lanes(log: str) -> Iterator[tuple[str, str]]:
    """Transport and device of all lanes to other nodes; UCX tells from UCX_LOG_LEVEL=info on."""
    for line in log.splitlines():
        if lanes := _UCX_LANES.search(line):
            yield from _LANE.findall(lanes[1])


def environment(text: str) -> dict[str, str]:
    """The assignments of an EnvironmentFile of systemd: the last one of a name counts."""
    found = {}
    for line in text.splitlines():
        if assignment := _ASSIGNMENT.match(line.strip()):
            found[assignment[1]] = assignment[2].strip().strip("\"'")
    return found
