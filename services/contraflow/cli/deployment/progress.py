"""Tells a person what is being waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from rich.console import Console
from rich.status import Status


class Progress(Protocol):
    """Takes notes of what happens."""

    def waiting(self, text: str) -> None:
        """This is being waited for, from now on."""
        ...

    def done(self, text: str) -> None:
        """This has been reached."""
        ...

    def idle(self) -> None:
        """Nothing is being waited for."""
        ...


class Silent:
    """Tells nobody."""

    def waiting(self, text: str) -> None:
        """Nothing."""

    def done(self, text: str) -> None:
        """Nothing."""

    def idle(self) -> None:
        """Nothing."""


class ConsoleProgress:
    """A line for each thing reached; what is waited for moves on a terminal, else is a line."""

    def __init__(self, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        self._console, self._now = console, now
        self._start = now()
        self._status: Status | None = None

    def waiting(self, text: str) -> None:
        """Shown until the next call."""
        if not self._console.is_terminal:
            self._line(f"{text} …")
        elif self._status:
            self._status.update(f"{text} …")
        else:
            self._status = self._console.status(f"{text} …")
            self._status.start()

    def done(self, text: str) -> None:
        """A line that stays."""
        self._line(text)

    def idle(self) -> None:
        """Leaves the terminal to others."""
        if self._status:
            self._status.stop()
            self._status = None

    def _line(self, text: str) -> None:
        seconds = self._now() - self._start
        line = f"[{seconds:5.1f} s] {text}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
