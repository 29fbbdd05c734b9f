"""Where an engine may be reached."""

from __future__ import annotations

import pytest

from contraflow.core.fleet import is_endpoint
from contraflow.web import Origin

GOOD = ("http://h", "http://h:8000", "http://10.0.0.5:1/", "http://[fd00::1]:8000", "HTTP://h:1")
BAD = (
    "", "x", "h:8000", "unix:/h", "ftp://h:1", "https://h:1", "http://", "http://:8000",
    "http://h:0", "http://h:70000", "http://h:x", "http://[::1", "http://h/v1", "http://h?a=1",
    "http://h#a", "http://u@h", "http://h h", "http://h\n", "http://h%20h", "http://é:1",
    "http://h\x00",
)  # fmt: skip


@pytest.mark.parametrize("text", GOOD)
def test_it_is_the_base_of_a_plain_http_server(text: str) -> None:
    assert is_endpoint(text)
    assert Origin.parse(text).host in text


@pytest.mark.parametrize("text", BAD)
def test_nothing_else_is(text: str) -> None:
    assert not is_endpoint(text)
