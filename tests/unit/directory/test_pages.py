"""Pages: complete, ordered, clamped; foreign tokens are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contraflow.core.errors import InvalidArgument
from contraflow.directory.pages import page

KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4)


@given(st.dictionaries(KEYS, st.integers()), st.integers(0, 5), st.integers(1, 4))
def test_pages_hold_everything_once_in_order(
    values: dict[str, int], size: int, max_size: int
) -> None:
    seen: list[int] = []
    token = ""
    for _ in range(len(values) + 1):
        chosen, token = page(values, size, token, max_size)
        assert len(chosen) <= (min(size, max_size) or max_size)
        seen += chosen
        if not token:
            break
    assert seen == [values[key] for key in sorted(values)]


@pytest.mark.parametrize("token", ["!", "a", "/w==", "é"])
def test_foreign_tokens_are_refused(token: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        page({"a": 1}, 0, token, 10)
    assert caught.value.metadata == {"field": "page_token"}
