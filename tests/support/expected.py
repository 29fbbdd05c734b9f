"""What a model generates by itself, as engines that sum in another order may say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_ROUNDING = 1e-4
"""Differences of log probabilities that the order of a sum in 32 bits can make; seen: 8e-6."""
_AS_IDS = "token_id:"


class Expected(list[int]):
    """Token ids. ``ties``: by position, tokens that are as likely but for rounding.

    An answer is equal to it that goes another way at such a position, whatever comes after:
    that is the continuation of another text. Ranks, batches and chunks decide the order of sums.
    """

    def __init__(self, ids: Sequence[int], ties: Mapping[int, set[int]]) -> None:
        super().__init__(ids)
        self.ties = ties

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list) or len(other) != len(self):
            return False
        for position, (mine, theirs) in enumerate(zip(self, other, strict=True)):
            if mine != theirs:
                return theirs in self.ties.get(position, ())
        return True

    def __ne__(self, other: object) -> bool:
        return not self == other


ASKED = {"logprobs": 2, "return_tokens_as_token_ids": True}
"""What a completion is asked for so that ``expected`` can tell ties."""


def expected(choice: Mapping[str, Any]) -> Expected:
    """Of a choice of vLLM's ``/v1/completions``, which was asked for ``ASKED``."""
    ids = choice["token_ids"]
    tops = [
        {int(name.removeprefix(_AS_IDS)): likely for name, likely in top.items()}
        for top in choice["logprobs"]["top_logprobs"]
    ]
    return Expected(
        ids,
        {
            position: {token for token, likely in top.items() if top[said] - likely < _ROUNDING}
            for position, (said, top) in enumerate(zip(ids, tops, strict=True))
        },
    )
