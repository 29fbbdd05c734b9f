"""Reads a reply as it passes, to know it again when the client sends it back."""

from __future__ import annotations

import hashlib

import msgspec
from msgspec import Struct

from contraflow.router.messages import Message, digest_of, reply_digest

_DATA = b"data:"
_DONE = b"[DONE]"


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(Struct):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Delta(Struct):
    """Of both APIs: they share no member."""

    content: str | None = None
    tool_calls: list[_Call] | None = None
    text: str | None = None
    partial_json: str | None = None


class _Choice(Struct):
    delta: _Delta | None = None


class _Block(Struct):
    type: str = ""
    text: str | None = None
    id: str | None = None
    name: str | None = None


class _Event(Struct):
    """A chunk of a chat completion, or an event of the Messages API."""

    choices: list[_Choice] = []
    index: int = 0
    content_block: _Block | None = None
    delta: _Delta | None = None


class _Message(Struct):
    message: Message = {}


class _Whole(Struct):
    """A chat completion, or a message of the Messages API."""

    choices: list[_Message] = []
    content: list[Message] = []


_events = msgspec.json.Decoder(_Event)
_wholes = msgspec.json.Decoder(_Whole)


class ReplyReader:
    """Feed it the events of one answer, or the whole of it; ``digest`` is then as that of
    ``reply_digest`` of the message that the client will send back.

    Nothing depends on it but ties, so that an answer it can not read is just not known.
    """

    def __init__(self) -> None:
        self._text = hashlib.sha256()
        self._calls: dict[int, _OpenCall] = {}
        self._whole = ""
        self._lost = False

    @property
    def digest(self) -> str:
        """Empty if the answer could not be read."""
        if self._lost:
            return ""
        calls = [(call.id, call.name, "".join(call.json)) for call in self._calls.values()]
        return self._whole or digest_of(self._text.digest(), calls)

    def read(self, body: bytes) -> None:
        """Take an answer that is not streamed."""
        try:
            whole = _wholes.decode(body)
        except (msgspec.DecodeError, RecursionError):
            self._lost = True
            return
        message = whole.choices[0].message if whole.choices else {"content": whole.content}
        self._whole = reply_digest(message)
        self._lost = not self._whole

    def feed(self, events: bytes) -> None:
        """Take complete events of a stream."""
        if self._lost:
            return
        for line in events.splitlines():
            data = line[len(_DATA) :].strip() if line.startswith(_DATA) else b""
            if not data or data == _DONE:
                continue
            try:
                self._take(_events.decode(data))
            except (msgspec.DecodeError, RecursionError):
                self._lost = True
                return

    def _take(self, event: _Event) -> None:
        if event.content_block is not None:
            self._open(event.index, event.content_block)
        delta = event.choices[0].delta if event.choices else event.delta
        if delta is None:
            return
        if text := delta.content or delta.text:
            self._text.update(text.encode())
        if delta.partial_json:
            self._call(event.index).json.append(delta.partial_json)
        for part in delta.tool_calls or ():
            call = self._call(part.index)
            call.id = part.id or call.id
            if part.function is not None:
                call.name = part.function.name or call.name
                call.json.append(part.function.arguments or "")

    def _open(self, index: int, block: _Block) -> None:
        if block.type == "tool_use":
            call = self._call(index)
            call.id, call.name = block.id, block.name
        elif block.text:
            self._text.update(block.text.encode())

    def _call(self, index: int) -> _OpenCall:
        return self._calls.setdefault(index, _OpenCall())


class _OpenCall:
    __slots__ = ("id", "json", "name")

    def __init__(self) -> None:
        self.id: str | None = None
        self.name: str | None = None
        self.json: list[str] = []
