"""What the EFA devices of a node count, and whether that is what NIXL moved.

Logs tell what was intended; the device's own counters tell what was done, whichever backend.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deploy.ec2.checks import Finding

SYSFS = Path("/sys/class/infiniband")
NIXL_BYTES = "vllm:nixl_bytes_transferred_sum"
# Of an engine's bytes; the rest is for reads that end while a snapshot is taken.
_MOST = 0.9


class CountersUnreadable(Exception):
    """There is nothing to judge by. ``str(error)`` says what to do."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """At one instant. Bytes, by device: ``read`` by RDMA of this node's asking, ``received`` in
    any way. ``nixl`` are those that the node's engine says it has read from other engines."""

    read: Mapping[str, int]
    received: Mapping[str, int]
    nixl: float

    def dump(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def load(cls, path: Path) -> Snapshot:
        """Raises CountersUnreadable."""
        try:
            found: dict[str, Any] = json.loads(path.read_text())
            return cls(dict(found["read"]), dict(found["received"]), float(found["nixl"]))
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise CountersUnreadable(
                f"{path} is no snapshot ({error}): make it with `snapshot > {path.name}`"
            ) from None


def efa_names(root: Path = SYSFS) -> list[str]:
    """The devices that the driver efa serves. Other adapters lie in the same folder."""
    if not root.is_dir():
        return []
    drivers = {one.name: (one / "device" / "driver").resolve().name for one in root.iterdir()}
    return sorted(name for name, driver in drivers.items() if driver == "efa")


def take(nixl: float, root: Path = SYSFS) -> Snapshot:
    """The devices' counters now, beside the engine's. Raises CountersUnreadable."""
    names = efa_names(root)
    if not names:
        raise CountersUnreadable(
            f"no EFA device in {root}: run this on the node itself, not in a container, and see "
            "`lsmod | grep efa`"
        )
    read = {name: _count(root / name, "rdma_read_bytes") for name in names}
    received = {name: _count(root / name, "rx_bytes") for name in names}
    return Snapshot(read, received, nixl)


def _count(device: Path, counter: str) -> int:
    files = sorted(device.glob(f"ports/*/hw_counters/{counter}"))
    try:
        if not files:
            raise FileNotFoundError(counter)
        return sum(int(file.read_text()) for file in files)
    except (OSError, ValueError) as error:
        raise CountersUnreadable(
            f"{device} does not count {counter} ({error}): update the EFA driver"
        ) from None


def nixl_bytes(page: Mapping[str, float]) -> float:
    """Of an engine's metrics. Zero before the first transfer: vLLM makes the counter then."""
    return page.get(NIXL_BYTES, 0.0)


def moved(before: Snapshot, after: Snapshot) -> Finding:
    """Whether the engine's reads between two snapshots went by RDMA over EFA.

    Both of one node: the one whose engine reads. Every transfer is a read, on either leg.
    """
    expected = after.nixl - before.nixl
    read = _risen(before.read, after.read)
    received = _risen(before.received, after.received)
    if expected < 0 or min([*read.values(), *received.values()], default=-1) < 0:
        return Finding(
            "moved",
            "counters are lower than before, or of other devices",
            "take both snapshots in one life of node and engine, and in that order",
        )
    if expected == 0:
        return Finding(
            "moved",
            "the engine has read nothing from another engine in this time",
            "send turns through the router between the snapshots; if there were some, see "
            "x-contraflow in their answers, and `contraflow ps`",
        )
    by_rdma, in_any_way = sum(read.values()), sum(received.values())
    said = f"NIXL read {_gb(expected)}, EFA devices {_gb(by_rdma)} by RDMA"
    if by_rdma >= _MOST * expected:
        busy = sum(value > 0 for value in read.values())
        return Finding("moved", f"{said} on {busy} of {len(read)} devices")
    if in_any_way >= _MOST * expected:
        return Finding(
            "moved",
            f"{said}, but received {_gb(in_any_way)}: reads are emulated by send and receive",
            "set FI_EFA_USE_DEVICE_RDMA=1 on both nodes, see that the libfabric of "
            "/opt/amazon/efa is the one in use, and restart the engines",
        )
    return Finding(
        "moved",
        f"{said} and received {_gb(in_any_way)}: the rest went over TCP",
        "do not use these figures; run `check` and `log` on both nodes, set what they ask for, "
        "restart the engines and measure again",
    )


def _risen(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {name: value - before.get(name, value + 1) for name, value in after.items()}


def _gb(count: float) -> str:
    return f"{count / 1e9:,.2f} GB"
