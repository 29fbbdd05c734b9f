"""Which processes a session has. Standard library only: the janitor loads it by path."""

from __future__ import annotations

import os
import signal
from pathlib import Path

_PROC = Path("/proc")
_GONE = ("Z", "X")


def session_members(session: int) -> list[int]:
    """Process ids in a session, without zombies: nobody may be there to reap an orphan."""
    members = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name is in parentheses and may itself contain spaces and parentheses.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        state, _parent, group, owner = fields[0], *map(int, fields[1:4])
        if state not in _GONE and session in (group, owner):
            members.append(int(entry.name))
    return members


def signal_all(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to each process that is still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def available_memory() -> int:
    """Bytes that can be used without swapping; 0 if unknown."""
    try:
        lines = (_PROC / "meminfo").read_text().splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else 0
