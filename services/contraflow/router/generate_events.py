"""An engine's event stream as the messages of Generate."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from contraflow.core.errors import ContraflowError, EngineFailed
from contraflow.router.generate_errors import of_error_object
from contraflow.v1 import router_service_pb2 as pb

_BETWEEN = re.compile(rb"\r?\n\r?\n")
_DATA = b"data:"
_decoder = msgspec.json.Decoder()


class EventReader:
    """Reads the events of one answer, of the OpenAI or the Messages API.

    ``usage`` is what was counted up to now; ``begun`` is true from the first part on, ``done``
    once the engine has said that it is done; ``error`` is the first error of the stream, after
    which nothing more is read.
    """

    def __init__(self) -> None:
        self.usage: pb.Usage | None = None
        self.begun = False
        self.done = False
        self.error: ContraflowError | None = None
        self._counts: dict[str, Any] = {}

    def chunks(self, events: bytes) -> Iterator[pb.Chunk]:
        """The parts of the answer in a piece of the stream, which ends with an event."""
        for event in _BETWEEN.split(events):
            lines = event.splitlines()
            data = b"\n".join(line[len(_DATA) :].strip() for line in lines if _is_data(line))
            if data == b"[DONE]":
                self.done = True
            elif data and self.error is None:
                for chunk in self._chunks(data):
                    self.begun = True
                    yield chunk

    def _chunks(self, data: bytes) -> Iterator[pb.Chunk]:
        try:
            text, value = data.decode(), _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            value = None
        if not isinstance(value, dict):
            self.error = EngineFailed("the engine sent an event that is no JSON object")
        elif isinstance(value.get("error"), dict):
            self.error = of_error_object(value)
        elif isinstance(value.get("type"), str):
            yield self._of_messages(value, text)
        else:
            yield from self._of_openai(value, text)

    def _of_openai(self, value: dict[str, Any], text: str) -> Iterator[pb.Chunk]:
        self._count(value.get("usage"))
        choices = value.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                delta = choice.get("delta")
                said = delta.get("content") if isinstance(delta, dict) else choice.get("text")
                yield pb.Chunk(
                    index=_count(choice.get("index")),
                    text=_text(said),
                    finish_reason=_text(choice.get("finish_reason")),
                    json=text,
                )

    def _of_messages(self, value: dict[str, Any], text: str) -> pb.Chunk:
        kind, delta, message = value["type"], value.get("delta"), value.get("message")
        self.done = self.done or kind == "message_stop"
        self._count(message.get("usage") if isinstance(message, dict) else value.get("usage"))
        delta = delta if isinstance(delta, dict) else {}
        said = delta.get("text") if delta.get("type") == "text_delta" else None
        return pb.Chunk(text=_text(said), finish_reason=_text(delta.get("stop_reason")), json=text)

    def _count(self, usage: object) -> None:
        """Later counts replace earlier ones, each for itself: the Messages API may spread them."""
        if not isinstance(usage, dict):
            return
        counts = self._counts = {**self._counts, **usage}
        details = counts.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        # In the Messages API the tokens of the prompt are those that were not cached.
        read = _count(counts.get("cache_read_input_tokens"))
        written = _count(counts.get("cache_creation_input_tokens"))
        self.usage = pb.Usage(
            prompt_tokens=_count(counts.get("prompt_tokens"))
            or _count(counts.get("input_tokens")) + read + written,
            completion_tokens=_count(counts.get("completion_tokens"))
            or _count(counts.get("output_tokens")),
            cached_tokens=_count(cached) or read,
        )


def _is_data(line: bytes) -> bool:
    return line.startswith(_DATA)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int:
    return value if type(value) is int and 0 <= value < 2**32 else 0
