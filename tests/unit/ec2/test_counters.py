"""The devices' own counters: the proof that KV went over EFA, whichever backend moved it."""

from __future__ import annotations

from pathlib import Path

import pytest
from deploy.ec2.counters import (
    NIXL_BYTES,
    CountersUnreadable,
    Snapshot,
    efa_names,
    moved,
    nixl_bytes,
    take,
)

GB = 10**9
NAMES = ("rdmap85s0", "rdmap86s0")


def device(root: Path, name: str, driver: str = "efa", **counters: int) -> None:
    """A device as the kernel shows it."""
    (root / "drivers" / driver).mkdir(parents=True, exist_ok=True)
    hw = root / "infiniband" / name / "ports" / "1" / "hw_counters"
    hw.mkdir(parents=True)
    (hw.parents[2] / "device").mkdir()
    (hw.parents[2] / "device" / "driver").symlink_to(root / "drivers" / driver)
    for counter, value in counters.items():
        (hw / counter).write_text(f"{value}\n")


def snapshot(read: int, received: int, nixl: float) -> Snapshot:
    """Each of two devices has half of it."""
    return Snapshot(
        dict.fromkeys(NAMES, read // 2), dict.fromkeys(NAMES, received // 2), float(nixl)
    )


BEFORE = snapshot(7 * GB, 9 * GB, 3 * GB)


def after(read: int, received: int, nixl: float) -> Snapshot:
    return snapshot(7 * GB + read, 9 * GB + received, 3 * GB + nixl)


def test_only_devices_of_the_driver_efa_count(tmp_path: Path) -> None:
    for name in NAMES:
        device(tmp_path, name, rdma_read_bytes=5, rx_bytes=8)
    device(tmp_path, "mlx5_0", "mlx5_core", rdma_read_bytes=1000, rx_bytes=1000)
    root = tmp_path / "infiniband"
    assert efa_names(root) == list(NAMES)
    assert take(2.0, root) == Snapshot(dict.fromkeys(NAMES, 5), dict.fromkeys(NAMES, 8), 2.0)


def test_no_device_or_no_counter_is_an_error_with_a_next_step(tmp_path: Path) -> None:
    assert efa_names(tmp_path / "none") == []
    with pytest.raises(CountersUnreadable, match="lsmod"):
        take(0.0, tmp_path / "none")
    device(tmp_path, "rdmap85s0", rx_bytes=8)
    with pytest.raises(CountersUnreadable, match=r"rdma_read_bytes.*update the EFA driver"):
        take(0.0, tmp_path / "infiniband")


def test_a_snapshot_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    path.write_text(BEFORE.dump())
    assert Snapshot.load(path) == BEFORE


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"read": 1, "received": {}, "nixl": 0}'])
def test_what_is_no_snapshot_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "before.json"
    path.write_text(text)
    with pytest.raises(CountersUnreadable, match="is no snapshot"):
        Snapshot.load(path)


def test_an_engine_that_has_moved_nothing_yet_has_no_counter() -> None:
    assert nixl_bytes({}) == 0.0
    assert nixl_bytes({NIXL_BYTES: 5.0}) == 5.0


def test_reads_by_rdma_are_good_also_beside_other_traffic() -> None:
    assert moved(BEFORE, after(10 * GB, 10 * GB, 10 * GB)).good
    assert moved(BEFORE, after(12 * GB, 40 * GB, 10 * GB)).good


def test_reads_of_which_efa_saw_nothing_went_over_tcp() -> None:
    finding = moved(BEFORE, after(0, 2_000_000, 10 * GB))
    assert "over TCP" in finding.said
    assert "do not use these figures" in finding.do


def test_reads_that_efa_saw_in_part_are_refused_as_well() -> None:
    assert "over TCP" in moved(BEFORE, after(8 * GB, 8 * GB, 10 * GB)).said


def test_reads_emulated_by_send_and_receive_are_refused() -> None:
    finding = moved(BEFORE, after(0, 10 * GB, 10 * GB))
    assert "emulated" in finding.said
    assert "FI_EFA_USE_DEVICE_RDMA" in finding.do


def test_nothing_moved_proves_nothing() -> None:
    finding = moved(BEFORE, after(10 * GB, 10 * GB, 0))
    assert "read nothing" in finding.said
    assert not finding.good


@pytest.mark.parametrize(
    "later",
    [
        after(-GB, GB, GB),
        after(GB, -GB, GB),
        after(GB, GB, -GB),
        Snapshot({"rdmap200s0": 9 * GB}, {"rdmap200s0": 9 * GB}, 4 * GB),
        Snapshot({}, {}, 4 * GB),
    ],
)
def test_snapshots_of_two_lives_or_nodes_are_refused(later: Snapshot) -> None:
    assert "lower than before" in moved(BEFORE, later).said
