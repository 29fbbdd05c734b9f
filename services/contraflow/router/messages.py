"""Messages of a conversation in canonical form, and what tells one reply from another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from contraflow.router.json_values import has_more_values
from contraflow.web.json_splice import Fields

Message = dict[str, Any]

_KINDS = {"/v1/chat/completions": "chat", "/v1/messages": "messages"}
_decoder = msgspec.json.Decoder(list[Message])
_values = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder(order="sorted")
_EXACT_FLOATS = 2.0**53
_MAX_VALUES = 100_000
"""JSON values in the messages of a conversation, or in the arguments of its tool calls. More would
hold up all other turns."""


def kind_of(path: str) -> str:
    """The API whose form the messages of a request have; empty for a path without messages."""
    return _KINDS.get(path, "")


def messages_of(kind: str, fields: Fields) -> list[Message]:
    """The messages of a request, a top-level system prompt first; none if they can not be read,
    or are too many values.

    What an engine makes of such a request is for the engine to say.
    """
    raw = [bytes(fields[name]) for name in ("messages", "system") if name in fields]
    if has_more_values(raw, _MAX_VALUES):
        return []
    try:
        messages = _decoder.decode(fields["messages"]) if "messages" in fields else []
        system = _values.decode(fields["system"]) if "system" in fields else None
    except (msgspec.DecodeError, RecursionError):
        return []
    if has_more_values([*_written_arguments(messages)], _MAX_VALUES):
        return []
    if kind == "messages" and system and messages:
        messages.insert(0, {"role": "system", "content": system})
    return messages


def canonical(message: Message) -> bytes:
    """A message as sorted JSON: equal for two that say the same.

    Empty and null members say nothing. Text in parts equals the text; numbers and escapes
    count by value; a client's marks for prompt caching, which wander, do not count.
    """
    plain = {
        key: _content(value) if key == "content" else _plain(value)
        for key, value in message.items()
    }
    return _encoder.encode({key: value for key, value in plain.items() if value not in _NOTHING})


def is_text(message: Message) -> bool:
    """False if a message has parts that are no text, or may be none."""
    content = message.get("content")
    return content is None or isinstance(_content(content), str)


_NOTHING: tuple[object, ...] = (None, "", [])


def reply_digest(message: Message) -> str:
    """Digest of what a client sends back of a reply: its text and its tool calls; empty for
    arguments that are nested too deeply to be compared.

    Takes an assistant message of either API.
    """
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    text = content if isinstance(content, str) else "".join(_texts(parts))
    calls = _chat_calls(message)
    calls += [
        (part.get("id"), part.get("name"), part.get("input"))
        for part in parts
        if isinstance(part, dict) and part.get("type") == "tool_use"
    ]
    return digest_of(hashlib.sha256(text.encode()).digest(), calls)


def digest_of(text_digest: bytes, calls: Iterable[tuple[Any, Any, Any]]) -> str:
    """As ``reply_digest``, from the SHA-256 of the text and the calls: id, name, arguments."""
    try:
        plain = [(call_id, name, _plain(_arguments(given))) for call_id, name, given in calls]
        encoded = _encoder.encode(plain)
    except RecursionError:
        return ""
    return hashlib.sha256(text_digest + encoded).hexdigest()[:32]


def _chat_calls(message: Message) -> list[tuple[Any, Any, Any]]:
    called = message.get("tool_calls")
    called = called if isinstance(called, list) else []
    return [_chat_call(call) for call in called if isinstance(call, dict)]


def _chat_call(call: Message) -> tuple[Any, Any, Any]:
    function = call.get("function")
    if not isinstance(function, dict):
        return call.get("id"), None, None
    return call.get("id"), function.get("name"), function.get("arguments")


def _written_arguments(messages: Iterable[Message]) -> Iterator[bytes]:
    for message in messages:
        for _, _, arguments in _chat_calls(message):
            if isinstance(arguments, str):
                yield arguments.encode()


def _arguments(given: Any) -> Any:
    # JSON in a string. Many clients keep it decoded and write it anew.
    if not isinstance(given, str):
        return given
    try:
        return _values.decode(given) if given else {}
    except (msgspec.DecodeError, RecursionError):
        return given


def _texts(parts: Iterable[Any]) -> list[str]:
    texts = (part.get("text") for part in parts if _has_type(part, "text"))
    return [text for text in texts if isinstance(text, str)]


def _has_type(part: Any, kind: str) -> bool:
    return isinstance(part, dict) and part.get("type") == kind


def _content(value: Any) -> Any:
    value = _plain(value)
    if not isinstance(value, list):
        return value
    parts = [
        {key: item for key, item in part.items() if key != "cache_control"}
        if isinstance(part, dict)
        else part
        for part in value
    ]
    return "".join(part["text"] for part in parts) if all(map(_is_text, parts)) else parts


def _is_text(part: Any) -> bool:
    return _has_type(part, "text") and part.keys() == {"type", "text"} and type(part["text"]) is str


def _plain(value: Any) -> Any:
    """Without null members, and with whole numbers as such."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_FLOATS:
        return int(value)
    return value
