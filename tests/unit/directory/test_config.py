"""Limits that would do harm are refused."""

from __future__ import annotations

import pytest

from contraflow.directory.config import DirectoryConfig
from contraflow.runtime.config import ConfigError, parse


@pytest.mark.parametrize(
    ("items", "accepted"), [(99, False), (100, True), (128, True), (129, False)]
)
def test_a_batch_takes_what_agents_send_and_etcd_takes(items: int, accepted: bool) -> None:
    text = f"[limits]\nmax_batch_items = {items}"
    if accepted:
        assert parse(text, DirectoryConfig, "test").limits.max_batch_items == items
        return
    with pytest.raises(ConfigError, match="max_batch_items"):
        parse(text, DirectoryConfig, "test")
