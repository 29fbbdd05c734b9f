"""Folders of runs: kept while their process lives, and removed by a later one once it is dead."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from contraflow.cli.deployment.held_folder import HeldFolder, remove_left, temporary_folder
from contraflow.cli.deployment.project import TEMPORARY, Project

HOLDER = """
import sys, time
from pathlib import Path
from contraflow.cli.deployment.held_folder import temporary_folder
from contraflow.cli.deployment.project import TEMPORARY, Project

with Project(Path(sys.argv[1])).new_run_dir() as run, temporary_folder(run, TEMPORARY) as folder:
    (folder / "engines.sock").touch()
    print(folder, flush=True)
    time.sleep(600)
"""


@contextmanager
def holder(root: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process with a run and its temporary folder, killed at the end."""
    command = [sys.executable, "-c", HOLDER, str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_what_a_killed_run_has_left_goes_and_its_logs_stay(tmp_path: Path) -> None:
    project = Project(tmp_path)
    with holder(tmp_path) as (process, left):
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert left.exists()
        with project.new_run_dir():
            assert not left.exists()
            assert left.parent.exists()


def test_what_a_live_run_holds_stays_however_many_come_after_it(tmp_path: Path) -> None:
    project = Project(tmp_path)
    with holder(tmp_path) as (_, held):
        for _ in range(8):
            with project.new_run_dir() as run, temporary_folder(run, TEMPORARY):
                pass
        assert list(held.iterdir()) == [held / "engines.sock"]


def test_run_folders_are_private_and_old_ones_go(tmp_path: Path) -> None:
    project = Project(tmp_path)
    old = [project.new_run_dir() for _ in range(2)]
    assert stat.S_IMODE(old[0].path.stat().st_mode) == 0o700
    with ExitStack() as holding:
        for run in old:
            with run:
                pass
        kept = [holding.enter_context(project.new_run_dir()) for _ in range(8)]
        assert all(run.exists() for run in kept)
        assert not any(run.path.exists() for run in old)


def test_a_run_goes_elsewhere_where_the_checkout_takes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "tmp"
    elsewhere.mkdir()
    (elsewhere / "notes").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "runs").symlink_to("/proc/self/fd")  # writable for nobody, root neither
    runs = []
    for _ in range(8):
        with Project(tmp_path).new_run_dir() as run:
            runs.append(run)
            assert stat.S_IMODE(run.stat().st_mode) == 0o700
    assert {run.parent for run in runs} == {elsewhere}
    assert sum(run.exists() for run in runs) == 5
    assert (elsewhere / "notes").exists()


def test_a_temporary_folder_is_gone_at_the_end_with_what_others_left(tmp_path: Path) -> None:
    with HeldFolder(tmp_path, "model-") as left:
        pass
    with HeldFolder(tmp_path, "model-") as held, HeldFolder(tmp_path, "x-model-") as other:
        with temporary_folder(tmp_path, "model-") as folder:
            assert set(tmp_path.iterdir()) == {folder, held, other}
        assert set(tmp_path.iterdir()) == {held, other}
    assert left != held


def test_links_and_what_is_gone_are_left_alone(tmp_path: Path) -> None:
    (target := tmp_path / "target").mkdir()
    (link := tmp_path / "tmp-link").symlink_to(target)
    (file := tmp_path / "tmp-file").touch()
    remove_left([link, file, tmp_path / "tmp-gone"])
    assert set(tmp_path.iterdir()) == {target, link, file}
