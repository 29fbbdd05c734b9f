"""Reads workload files of vLLM's multi-turn benchmark (``"filetype": "generate_conversations"``).

The text files that they name are not read: here only the lengths count, and the text is made up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from contraflow.bench.multiturn.distributions import (
    Constant,
    Distribution,
    Lognormal,
    Poisson,
    Uniform,
    Zipf,
)
from contraflow.bench.multiturn.workload import Conversation, Turn, Workload

_KIND = "generate_conversations"


class WorkloadFileError(ValueError):
    """The file is not what it has to be. The text names the field and what belongs there."""


def read_workload(path: Path, seed: int) -> Workload:
    """The workload that a file describes. Raises WorkloadFileError or OSError."""
    try:
        document = json.loads(path.read_text())
    except ValueError as error:
        raise WorkloadFileError(f"{path} is not JSON: {error}") from None
    try:
        return parse_workload(document, seed, path.name)
    except WorkloadFileError as error:
        raise WorkloadFileError(f"{path}: {error}") from None


def parse_workload(document: Any, seed: int, name: str) -> Workload:
    """As ``read_workload``, of the parsed file. Raises WorkloadFileError."""
    fields = _Fields(document, "")
    if (kind := fields.get("filetype")) != _KIND:
        raise WorkloadFileError(f"`filetype` must be {_KIND!r}, not {kind!r}")
    count = fields.whole("num_conversations", least=1)
    asked, answered = fields.section("prompt_input"), fields.section("prompt_output")
    messages = _distribution(asked.section("num_turns"))
    common = _distribution(asked.section("common_prefix_num_tokens", optional=True))
    prefix = _distribution(asked.section("prefix_num_tokens"))
    said = _distribution(asked.section("num_tokens"))
    output = _distribution(answered.section("num_tokens"))
    random = Random(f"{seed}/file")
    common_tokens = max(0, common.draw(random))
    conversations = []
    for number in range(count):
        prefix_tokens = max(0, prefix.draw(random))
        # It counts messages, answers included; each question has its answer.
        turns = max(1, (messages.draw(random) + 1) // 2)
        drawn = ((said.draw(random), output.draw(random)) for _ in range(turns))
        made = tuple(Turn(max(1, one), max(1, other)) for one, other in drawn)
        conversations.append(Conversation(number, prefix_tokens, made))
    return Workload(name, tuple(conversations), common_tokens)


class _Fields:
    """An object of the file, and where it stands."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, Mapping):
            raise WorkloadFileError(f"{f'`{where}`' if where else 'the file'} must be an object")
        self._value, self._where = value, where

    def __contains__(self, name: str) -> bool:
        return name in self._value

    def path(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name

    def get(self, name: str) -> Any:
        return self._value.get(name)

    def section(self, name: str, *, optional: bool = False) -> _Fields:
        if optional and name not in self:
            return _Fields({"distribution": "constant", "value": 0}, self.path(name))
        return _Fields(self.get(name), self.path(name))

    def number(self, name: str, *, above: float | None = None) -> float:
        value = self.get(name)
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or (above is not None and value <= above):
            more = "" if above is None else f" above {above:g}"
            raise WorkloadFileError(f"`{self.path(name)}` must be a number{more}, not {value!r}")
        return float(value)

    def whole(self, name: str, *, least: int) -> int:
        value = self.number(name)
        if value != int(value) or value < least:
            raise WorkloadFileError(
                f"`{self.path(name)}` must be a whole number from {least} on, not {value:g}"
            )
        return int(value)


def _distribution(fields: _Fields) -> Distribution:
    kind = fields.get("distribution")
    if kind == "constant":
        return Constant(fields.whole("value", least=0))
    if kind == "uniform":
        low, high = fields.number("min", above=0), fields.number("max", above=0)
        if low > high:
            raise WorkloadFileError(f"`{fields.path('min')}` is above `{fields.path('max')}`")
        return Uniform(low, high)
    bound = {"most": fields.whole("max", least=1)} if fields.get("max") is not None else {}
    if kind == "lognormal":
        return _lognormal(fields, bound)
    if kind == "zipf":
        return Zipf(fields.number("alpha", above=1), **bound)
    if kind == "poisson":
        return Poisson(fields.number("alpha", above=0), **bound)
    raise WorkloadFileError(
        f"`{fields.path('distribution')}` must be constant, uniform, lognormal, zipf or poisson, "
        f"not {kind!r}"
    )


def _lognormal(fields: _Fields, bound: dict[str, int]) -> Lognormal:
    if "average" not in fields:
        return Lognormal(fields.number("mean"), fields.number("sigma", above=0), **bound)
    average = fields.number("average", above=0)
    if fields.get("median_ratio") is None:
        return Lognormal.around(average, **bound)
    ratio = fields.number("median_ratio", above=0)
    if ratio >= 1:
        raise WorkloadFileError(f"`{fields.path('median_ratio')}` must be below 1, not {ratio:g}")
    return Lognormal.around(average, ratio, **bound)
