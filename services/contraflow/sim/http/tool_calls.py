"""Finds tool calls in generated text."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass, field
from typing import Any

from contraflow.sim.text import render_call

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_NEXT = "\n" + _OPEN
_CALL = re.compile(
    r'<tool_call>\n\{"name": (?P<name>"(?:[^"\\]|\\.)*"), "arguments": (?P<arguments>.*)\}\n'
    r"</tool_call>",
    re.DOTALL,
)


@dataclass(frozen=True)
class ToolCall:
    """A call. ``arguments`` is JSON text as generated."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"chatcmpl-tool-{secrets.token_hex(16)}")

    def openai(self, **fields: Any) -> dict[str, Any]:
        """As in an OpenAI message."""
        function = {"name": self.name, "arguments": self.arguments}
        return {**fields, "id": self.id, "type": "function", "function": function}


class ToolCallParser:
    """Splits a text that comes in pieces into contents and calls.

    Only a call that renders back to the very text it was parsed from is one, and calls follow
    each other after one line break: so a history rendered from contents and calls is what was
    generated. All other text is content, also after the last call.
    """

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        self._held = ""
        self._over = False

    def feed(self, text: str) -> tuple[str, list[ToolCall]]:
        """Content and calls that are complete now; what may become a call is held back."""
        self._held += text
        content: list[str] = []
        calls: list[ToolCall] = []
        while self._held:
            found = self._step()
            if found is None:
                break
            if isinstance(found, ToolCall):
                calls.append(found)
            else:
                content.append(found)
        return "".join(content), calls

    def finish(self) -> str:
        """The text has ended: what was held back."""
        held, self._held = self._held, ""
        return held

    def _step(self) -> str | ToolCall | None:
        """The next piece of content or call; None if more text must come first."""
        if self._over:
            return self.finish()
        opening = _NEXT if self.calls else _OPEN
        at = self._held.find(opening)
        if at > 0 and self.calls:
            at = -1
        if at < 0:
            return self._no_opening(opening)
        if at > 0:
            return self._take(at)
        end = self._held.find(_CLOSE)
        if end < 0:
            return None
        text = self._take(end + len(_CLOSE))
        call = _parse(text.removeprefix("\n"))
        if call is None:
            self._over = True
            return text
        self.calls.append(call)
        return call

    def _no_opening(self, opening: str) -> str | None:
        if self.calls:
            if opening.startswith(self._held):
                return None
            self._over = True
            return self.finish()
        for length in range(min(len(opening), len(self._held)), 0, -1):
            if self._held.endswith(opening[:length]):
                kept = len(self._held) - length
                return self._take(kept) if kept else None
        return self.finish()

    def _take(self, length: int) -> str:
        taken, self._held = self._held[:length], self._held[length:]
        return taken


def _parse(text: str) -> ToolCall | None:
    found = _CALL.fullmatch(text)
    if found is None:
        return None
    try:
        name = json.loads(found["name"])
        json.loads(found["arguments"])
    except json.JSONDecodeError:
        return None
    call = ToolCall(name, found["arguments"])
    return call if render_call(call.name, call.arguments) == text else None
