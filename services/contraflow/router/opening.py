"""How a stream begins: whether the engine has said anything yet, or has failed.

vLLM sends the role of an answer, or ``message_start``, before it looks whether the request has
failed, as it does where its blocks could not be pulled.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

import msgspec
from msgspec import Struct

_DATA = b"data:"


class Opening(Enum):
    """What the first events of a stream amount to."""

    SILENT = auto()
    """Nothing yet."""
    SPOKEN = auto()
    """The answer has begun."""
    FAILED = auto()
    """An error of the engine, not of the request."""
    ABORTED = auto()
    """The engine is being stopped: it will say nothing."""


class _Error(Struct):
    code: Any = None
    type: Any = None


class _Choice(Struct):
    delta: dict[str, Any] | None = None
    finish_reason: str | None = None


class _Delta(Struct):
    """Of the Messages API."""

    stop_reason: Any = None


class _Event(Struct):
    choices: list[_Choice] = []
    error: _Error | None = None
    type: str = ""
    delta: _Delta | None = None


_events = msgspec.json.Decoder(_Event)


def opening_of(events: bytes) -> Opening:
    """Of complete events, of the OpenAI or the Messages API."""
    for line in events.splitlines():
        if line.startswith(_DATA) and (said := _said(line[len(_DATA) :])) is not Opening.SILENT:
            return said
    return Opening.SILENT


def _said(data: bytes) -> Opening:
    try:
        event = _events.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return Opening.SPOKEN  # whatever it is, it is the client's
    if event.error is not None:
        code = event.error.code
        failed = event.error.type == "internal_error" or (type(code) is int and code >= 500)
        return Opening.FAILED if failed else Opening.SPOKEN
    if any(choice.finish_reason == "abort" for choice in event.choices):
        return Opening.ABORTED
    if event.type == "message_delta" and (event.delta is None or event.delta.stop_reason is None):
        return Opening.ABORTED
    silent = event.type == "message_start" or bool(event.choices)
    return Opening.SILENT if silent and all(map(_is_silent, event.choices)) else Opening.SPOKEN


def _is_silent(choice: _Choice) -> bool:
    if choice.delta is None or choice.finish_reason is not None:
        return False
    return not any(value for name, value in choice.delta.items() if name != "role")
