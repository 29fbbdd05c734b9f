"""The conversation: what user and tools say, and what the model is made to say.

A random model calls no tool by itself, so turns that shall are forced by a regular expression;
the names, the arguments' frame and the end are given, the values are the model's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]

SYSTEM = (
    "You are the on-call agent of a small web shop. Find out why an alert fired and what to do "
    "about it. Look before you guess: read logs, ask the database, and quote what you saw. "
    "Call one tool at a time and wait for its result. When you know enough, answer in a few "
    "sentences and name the next step."
)


def _tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": kind} for key, kind in parameters.items()},
                "required": list(parameters),
            },
        },
    }


TOOLS = (
    _tool("read_log", "Newest lines of a service's log.", service="string", pattern="string"),
    _tool("query", "Answer of the shop's database to one statement.", statement="string"),
)


@dataclass(frozen=True)
class ScriptedTurn:
    """One request. ``router`` counts from 0. ``says`` is what comes before it: a user's message,
    or the tool's answer to the call that the model has just made. ``forced`` is the regular
    expression of the whole response, empty if the model may say what it likes."""

    router: int
    says: str
    from_tool: bool = False
    forced: str = ""
    min_tokens: int = 0
    max_tokens: int = 160

    def sampling(self) -> dict[str, Any]:
        """Fields of the request that shape the response."""
        fields: dict[str, Any] = {"temperature": 0, "max_tokens": self.max_tokens}
        if self.min_tokens:
            fields["min_tokens"] = self.min_tokens
        if self.forced:
            fields["structured_outputs"] = {"regex": self.forced}
        return fields


def _call(name: str, **arguments: str) -> str:
    """The regular expression of a tool call in Hermes' form. ``arguments``: expressions too."""
    values = ", ".join(f'"{key}": "{value}"' for key, value in arguments.items())
    return rf'<tool_call>\n\{{"name": "{name}", "arguments": \{{{values}\}}\}}\n</tool_call>'


FIVE_TURNS = (
    ScriptedTurn(
        0,
        "Alert: one in five checkouts has failed since 09:40, and the rate still grows. "
        "What is going on?",
        forced=_call("read_log", service="(checkout|payments)", pattern="[a-z]{16,40}"),
    ),
    ScriptedTurn(
        0,
        "09:39:58 deploy 4711 done\n"
        "09:40:12 WARN pool exhausted, waited 5.0 s for a connection\n"
        "09:40:12 ERROR order 88121: payment not recorded: timeout\n"
        "09:40:19 WARN pool exhausted, waited 5.0 s for a connection\n"
        "09:40:21 ERROR order 88125: payment not recorded: timeout",
        from_tool=True,
        forced=_call("query", statement="SELECT [a-z]{4,12} FROM [a-z]{4,12} WHERE [a-z]{8,24}"),
    ),
    ScriptedTurn(
        1,
        "state | count | longest\n"
        "idle in transaction | 38 | 00:07:44\n"
        "active | 2 | 00:00:01\n"
        "(2 rows)",
        from_tool=True,
        min_tokens=64,
        max_tokens=112,
    ),
    ScriptedTurn(
        1,
        "Good. Before I roll back deploy 4711: does the search service see the same?",
        forced=_call("read_log", service="search", pattern="[a-z]{24,48}"),
    ),
    ScriptedTurn(
        1,
        "09:41:03 INFO index refreshed in 212 ms\n"
        "09:42:03 INFO index refreshed in 208 ms\n"
        "09:43:03 INFO index refreshed in 211 ms",
        from_tool=True,
        min_tokens=64,
        max_tokens=112,
    ),
)


@dataclass
class Conversation:
    """The messages so far, as a client keeps them."""

    messages: list[Message] = field(default_factory=lambda: [{"role": "system", "content": SYSTEM}])

    def say(self, turn: ScriptedTurn) -> None:
        """Append what user or tool say before a turn. Raises ValueError for a tool's answer
        that no call of the model asked for."""
        if not turn.from_tool:
            self.messages.append({"role": "user", "content": turn.says})
            return
        calls = self.messages[-1].get("tool_calls") or []
        if not calls:
            raise ValueError("the model was to call a tool, and did not")
        self.messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": turn.says} for call in calls
        ]

    def hear(self, message: Mapping[str, Any]) -> None:
        """Append the model's message."""
        self.messages.append(dict(message))
