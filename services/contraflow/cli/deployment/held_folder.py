"""Folders that are held by the process that made them, so that a later one can tell what is
left over: the kernel lets go of a lock however its holder ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType


class HeldFolder:
    """A new folder for its owner only. As a context it is held until the end, and stays."""

    def __init__(self, place: Path, prefix: str) -> None:
        """Raises OSError where no folder can be made or locked."""
        lock = None
        while lock is None:  # somebody took it for a left one before it was locked
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
            lock = _lock(self.path)
        self._lock = lock

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._lock)


@contextmanager
def temporary_folder(place: Path, prefix: str) -> Iterator[Path]:
    """A held folder that is removed at the end, as are those that dead processes have left there
    under the same prefix."""
    remove_left(place.glob(f"{prefix}*"))
    with HeldFolder(place, prefix) as folder:
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def remove_left(folders: Iterable[Path]) -> None:
    """Remove those that nobody holds."""
    for folder in folders:
        try:
            lock = _lock(folder)
        except OSError:  # somebody else's
            continue
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """None for a folder that another holds, or has removed. Raises OSError."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    if folder.exists():
        return descriptor
    os.close(descriptor)
    return None
