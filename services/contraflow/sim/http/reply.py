"""What a chat choice says: content, and tool calls in it."""

from __future__ import annotations

from contraflow.sim.http.choice import Choice, Piece
from contraflow.sim.http.tool_calls import ToolCall, ToolCallParser


class Reply:
    """A choice as a chat message, growing. Without tools all of its text is content."""

    def __init__(self, choice: Choice, *, with_tools: bool) -> None:
        self.choice = choice
        self.content = ""
        self.calls: list[ToolCall] = []
        self._parser = ToolCallParser() if with_tools else None

    @property
    def finish_reason(self) -> str | None:
        """``tool_calls`` if the model stopped after calls."""
        reason = self.choice.finish_reason
        return "tool_calls" if reason == "stop" and self.calls else reason

    def take(self, piece: Piece) -> tuple[str, list[ToolCall]]:
        """The content and calls that a piece completes."""
        content, calls = piece.text, list[ToolCall]()
        if self._parser is not None:
            content, calls = self._parser.feed(piece.text)
            if piece.finish_reason is not None:
                content += self._parser.finish()
        self.content += content
        self.calls += calls
        return content, calls
