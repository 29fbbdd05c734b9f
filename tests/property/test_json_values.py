"""Values of any JSON, however its texts look."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contraflow.router.json_values import has_more_values

texts = st.text(st.sampled_from('",:[]{}\\ \nxé'), max_size=12)
documents = st.recursive(
    texts | st.integers() | st.booleans() | st.none(),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(texts, values, max_size=4),
    max_leaves=20,
)


def weight(value: Any) -> int:
    """Values inside, the plain way."""
    if not isinstance(value, list | dict):
        return 0
    inner = list(value.values()) if isinstance(value, dict) else value
    return max(1, len(inner)) + sum(map(weight, inner))


@given(st.lists(documents, max_size=4), st.integers(0, 60), st.booleans())
def test_values_are_counted_and_texts_are_not(values: list[Any], limit: int, ascii: bool) -> None:
    written = [json.dumps(value, ensure_ascii=ascii).encode() for value in values]
    assert has_more_values(written, limit) is (sum(map(weight, values)) > limit)


@given(documents, documents, st.integers(0, 20))
def test_what_stands_before_a_mistake_counts(good: Any, other: Any, limit: int) -> None:
    broken = json.dumps(good) + '"' + json.dumps(other)
    if weight(good) > limit:
        assert has_more_values([broken.encode()], limit)
