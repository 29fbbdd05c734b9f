"""The program ``contraflow``: loads the commands, runs one, ends with its status."""

from __future__ import annotations

import os
import signal
from types import FrameType


def main() -> None:
    """Run the command that the arguments name."""
    # Before and after it there is nothing to leave in order, and no stack worth showing.
    meanwhile = signal.signal(signal.SIGINT, _leave)
    from contraflow.cli.commands import commands

    signal.signal(signal.SIGINT, meanwhile)
    try:
        commands()
    finally:
        signal.signal(signal.SIGINT, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    main()
