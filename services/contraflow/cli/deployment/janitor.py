"""Ends what its starter leaves behind when it is killed outright.

Run as ``python -I -S janitor.py GRACE_SECONDS`` with a pipe as its standard input, whose
other end only the starter holds. Lines ``+PID`` and ``-PID`` name sessions to watch and to
forget. At end of file each watched session gets SIGTERM at its leader, then SIGKILL at all
that is left after the grace.
"""

from __future__ import annotations

import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from procfs import session_members, signal_all  # type: ignore[import-not-found]

_POLL_SECONDS = 0.05


def main(grace: float) -> None:
    """Watch until end of file, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watched: set[int] = set()
    for line in sys.stdin:
        session = int(line[1:])
        if line[0] == "+":
            watched.add(session)
        else:
            watched.discard(session)
    end(watched, grace)


def end(sessions: set[int], grace: float) -> None:
    """Politely first: an engine that is asked removes its shared memory."""
    leaders = [session for session in sessions if session in session_members(session)]
    signal_all(leaders, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline and any(map(session_members, sessions)):
        time.sleep(_POLL_SECONDS)
    for session in sessions:
        signal_all(session_members(session), signal.SIGKILL)


if __name__ == "__main__":
    main(float(sys.argv[1]))
