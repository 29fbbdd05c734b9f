"""Replaces itself by a command that ends when its starter ends.

Run as ``python -I -S launch.py PARENT_PID COMMAND…``: a program of its own rather than a
``preexec_fn``, since Python must not run between fork and exec of a threaded process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
CANNOT_EXECUTE = 127


def main(argv: list[str]) -> None:
    """Arm the death signal, then execute the command; returns only by exiting."""
    parent, command = int(argv[1]), argv[2:]
    # The signal is kept over exec. It is armed for the thread that forked us: the starter's
    # event loop must not run on a thread that ends before the loop does.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:  # it died before the signal was armed
        sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(CANNOT_EXECUTE)


if __name__ == "__main__":
    main(sys.argv)
