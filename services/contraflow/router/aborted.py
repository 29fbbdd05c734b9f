"""Answers that an engine breaks off because it is being stopped.

vLLM then still answers with 200: what runs ends at once or, with ``--shutdown-timeout``, goes on
for a while, and what comes meanwhile gets an empty answer. Both have the finish reason ``abort``,
which nothing else has that reaches a client. The Messages API knows no such reason: there it is
left out.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

_EVENT = re.compile(rb'"finish_reason": ?"abort"')
"""Could not stand like this inside of a JSON string."""
_SUSPECT = re.compile(rb'"abort"|"type": ?"message"')
"""What an answer holds that is worth a closer look."""


class _Choice(Struct):
    finish_reason: Any = None


class _Usage(Struct):
    output_tokens: Any = None


class _Answer(Struct):
    choices: list[_Choice] = []
    type: Any = None
    stop_reason: Any = None
    usage: _Usage | None = None


_answers = msgspec.json.Decoder(_Answer)


def is_aborted(body: bytes) -> bool:
    """Whether a whole answer was broken off; of the Messages API, before its first token."""
    if _SUSPECT.search(body) is None:
        return False
    try:
        answer = _answers.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return False
    if any(choice.finish_reason == "abort" for choice in answer.choices):
        return True
    nothing = answer.usage is not None and answer.usage.output_tokens == 0
    return answer.type == "message" and answer.stop_reason is None and nothing


def tell_of_abort(events: bytes) -> bool:
    """Whether events of a stream of the OpenAI API tell that it was broken off."""
    return _EVENT.search(events) is not None
