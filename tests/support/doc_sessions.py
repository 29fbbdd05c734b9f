"""Shell sessions in a Markdown page: fences of commands, each with one of expected output.

A page has ```` ```bash ```` fences, each followed by a ```` ```text ```` fence with the essential
lines of what it prints, and no other fences: so nothing on it can stay untried. Commands of
```` ```bash again ```` are run again until they print what is expected, for what others hear of
in a moment. In an expected line, … stands for any text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"^\s*(`{3,}|~{3,})(.*)$")


class BadPage(Exception):
    """Something on the page would not be run, or not be compared."""


@dataclass(frozen=True)
class Session:
    """Commands that begin at a line of the page, and lines of their output, in order."""

    line: int
    commands: str
    expected: tuple[str, ...]
    again: bool

    def missing(self, output: str) -> str | None:
        """The first expected line that the output lacks; None if it has all, in order."""
        lines = (_essence(line) for line in output.splitlines())
        for wanted in self.expected:
            pattern = re.compile(".*".join(map(re.escape, wanted.split("…"))))
            if not any(pattern.fullmatch(line) for line in lines):
                return wanted
        return None


def _essence(line: str) -> str:
    # A comma depends on what follows in the JSON.
    return line.strip().removesuffix(",")


def sessions_of(page: str) -> list[Session]:
    """All sessions of a page, in order. Raises BadPage."""
    fences = list(_fences(page))
    if len(fences) % 2:
        raise BadPage(f"line {fences[-1].line}: commands and output come in pairs")
    return [_session(*pair) for pair in zip(fences[::2], fences[1::2], strict=True)]


@dataclass(frozen=True)
class _Fence:
    line: int
    kind: str
    lines: tuple[str, ...]


def _fences(page: str) -> Iterator[_Fence]:
    lines: Iterator[tuple[int, str]] = enumerate(page.splitlines(), 1)
    for number, line in lines:
        if line.startswith(("    ", "\t", "<pre")):
            raise BadPage(f"line {number}: commands stand in fences")
        if not (opening := _FENCE.match(line)):
            continue
        mark, kind = opening[1], opening[2].strip()
        if line != f"```{kind}":
            raise BadPage(f"line {number}: a fence is ``` at the begin of a line")
        body: list[str] = []
        for _, inner in lines:
            if inner.strip() == mark:
                break
            body.append(inner)
        else:
            raise BadPage(f"line {number}: this fence has no end")
        yield _Fence(number, kind, tuple(body))


def _session(commands: _Fence, output: _Fence) -> Session:
    if commands.kind not in ("bash", "bash again"):
        raise BadPage(f"line {commands.line}: {commands.kind!r} is neither run nor compared")
    if output.kind != "text":
        raise BadPage(f"line {commands.line}: no ```text with the output follows")
    expected = tuple(_essence(line) for line in output.lines if line.strip())
    if not any(line.replace("…", "").strip("{}[] ") for line in expected):
        raise BadPage(f"line {output.line}: any output would do")
    if not any(line.strip() and not line.startswith("#") for line in commands.lines):
        raise BadPage(f"line {commands.line}: there is no command")
    return Session(
        commands.line, "\n".join(commands.lines) + "\n", expected, commands.kind == "bash again"
    )
