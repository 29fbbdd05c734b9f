"""Text and tokens: one byte is one token, so a prompt is as long as its text.

Role markers are tokens of their own. Their names in a text stand for them, as with the
tokenizers of real models.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from contraflow.sim.vocab import BOS, BYTES, EOS, VOCAB_SIZE

IM_END = EOS
IM_START = BOS
SPECIALS = {"<|im_end|>": IM_END, "<|im_start|>": IM_START} | {
    f"<|reserved_{token}|>": token for token in range(IM_START + 1, VOCAB_SIZE)
}
_SPECIAL = re.compile("(" + "|".join(re.escape(name) for name in SPECIALS) + ")")
_BYTES_OF = [bytes([byte]) for byte in range(BYTES)] + [
    name.encode() for name, _ in sorted(SPECIALS.items(), key=lambda item: item[1])
]
Message = Mapping[str, Any]


def encode(text: str) -> list[int]:
    """Token ids of a text, the names of special tokens taken for them."""
    ids: list[int] = []
    for part in _SPECIAL.split(text):
        if part in SPECIALS:
            ids.append(SPECIALS[part])
        else:
            ids.extend(part.encode("utf-8", "replace"))
    return ids


def decode(ids: Iterable[int]) -> str:
    """The text of tokens, special ones by name. IndexError for an id that no token has."""
    return b"".join([_BYTES_OF[token] for token in ids]).decode("utf-8", "replace")


class TextStream:
    """Text of tokens that come in pieces. Special tokens are left out; a character that is cut
    by a piece's end comes with the next."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Iterable[int], *, final: bool = False) -> str:
        """The text that is complete now; all of it if ``final``."""
        return self._decoder.decode(bytes([token for token in ids if token < BYTES]), final)


def render_chat(
    messages: Sequence[Message],
    tools: Sequence[Any] = (),
    *,
    add_generation_prompt: bool = True,
) -> str:
    """A conversation as prompt text; assistant messages stand there exactly as generated.

    ``messages`` as in the OpenAI API, contents strings or text parts. Raises ValueError for
    what is no message.
    """
    parts: list[str] = []
    for index, message in enumerate(messages):
        role = message.get("role") if isinstance(message, Mapping) else None
        if not isinstance(role, str):
            raise ValueError(f"messages[{index}] must be an object with a role")
        text = _content(message.get("content"), index)
        if index == 0 and tools:
            system = role == "system"
            parts.append(_turn("system", _tools(text + "\n\n" if system else "", tools)))
            if system:
                continue
        if role == "tool":
            parts.append(_turn("user", f"<tool_response>\n{text}\n</tool_response>"))
        else:
            parts.append(_turn(role, text + _calls(message.get("tool_calls"), index)))
    if add_generation_prompt:
        parts.append("<|im_start|>assistant\n")
    return "".join(parts)


def render_call(name: str, arguments: str) -> str:
    """A tool call as the model writes it. ``arguments``: JSON text, kept as it is."""
    return (
        f'<tool_call>\n{{"name": {_json(name)}, "arguments": {arguments}}}\n</tool_call>'
    )  # fmt: skip


def _turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def _tools(before: str, tools: Sequence[Any]) -> str:
    lines = "".join([f"\n{_json(tool)}" for tool in tools])
    return f"{before}# Tools\n\n<tools>{lines}\n</tools>"


def _calls(calls: Any, index: int) -> str:
    try:
        return "\n".join([_call(call["function"]) for call in calls or ()])
    except (KeyError, TypeError):
        raise ValueError(
            f"messages[{index}].tool_calls must be a list of objects with function.name"
        ) from None


def _call(function: Any) -> str:
    # Text is kept, so that a call which was parsed comes back as generated.
    arguments = function.get("arguments") or "{}"
    return render_call(
        function["name"], arguments if isinstance(arguments, str) else _json(arguments)
    )


def _content(content: Any, index: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    try:
        return "".join([part if isinstance(part, str) else _text(part) for part in content])
    except (KeyError, TypeError):
        raise ValueError(
            f"messages[{index}].content must be a string or a list of text parts"
        ) from None


def _text(part: Any) -> str:
    if part["type"] not in ("text", "input_text", "output_text"):
        raise TypeError
    text: str = part["text"]
    return text


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
