"""What an operator may tell a connector, and that nothing of ours raises into an engine."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from contraflow_connector.guard import guarded
from contraflow_connector.settings import Settings, parse


@pytest.mark.parametrize(
    ("value", "kv_role", "expected"),
    [
        (None, "kv_both", Settings(role="prefill")),
        ({}, "kv_producer", Settings(role="prefill")),
        ({}, "kv_consumer", Settings(role="decode")),
        ({"role": "decode"}, "kv_both", Settings(role="decode")),
        ({"role": ""}, "kv_consumer", Settings(role="decode")),
        (
            {"endpoint": "http://[::1]:8000/"},
            "kv_both",
            Settings("", "http://[::1]:8000/", "prefill"),
        ),
        (
            {"agent": "unix:/a", "endpoint": "http://h"},
            "kv_both",
            Settings("unix:/a", "http://h", "prefill"),
        ),
    ],
)
def test_what_is_understood(value: object, kv_role: str, expected: Settings) -> None:
    assert parse(value, kv_role) == expected


NO_ENDPOINTS = (
    "x", "h:8000", "unix:/h", "ftp://h:1", "https://h:1", "http://", "http://:8000", "http://h:0",
    "http://h:70000", "http://h:x", "http://[::1", "http://h/v1", "http://h?a=1", "http://u@h",
    "http://h h", "http://h\n", "http://h%20h",
)  # fmt: skip


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ([], "object"),
        ("unix:/a", "object"),
        ({"agnet": "unix:/a"}, "agnet"),
        ({"agent": 1}, "agent"),
        ({"agent": None}, "agent"),
        ({"role": "both"}, "both"),
        ({"role": "PREFILL"}, "PREFILL"),
        ({"agent": "unix:/a"}, "endpoint"),
        *(({"endpoint": text}, "must be http://host:port") for text in NO_ENDPOINTS),
        ({"agent": "http://h:7200", "endpoint": "http://h"}, "must be a gRPC target"),
    ],
)
def test_what_is_refused_in_one_line_that_names_it(value: object, named: str) -> None:
    with pytest.raises(ValueError, match=named) as refused:
        parse(value, "kv_both")
    assert "\n" not in str(refused.value)


class Hooks:
    """As in the scheduler half."""

    @guarded((0, False))
    def ask(self, answer: Any) -> tuple[int, bool]:
        """Docstring."""
        if isinstance(answer, BaseException):
            raise answer
        return answer, True


def test_a_guarded_hook_answers_or_falls_back(caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks()
    assert hooks.ask(3) == (3, True)
    assert not caplog.records
    with caplog.at_level(logging.ERROR, logger="vllm.contraflow"):
        assert hooks.ask(ZeroDivisionError("inner")) == (0, False)
    (record,) = caplog.records
    assert "Hooks.ask" in record.getMessage()
    assert record.exc_info is not None
    assert Hooks.ask.__doc__ == "Docstring."


def test_the_end_of_the_process_is_not_held_up() -> None:
    with pytest.raises(KeyboardInterrupt):
        Hooks().ask(KeyboardInterrupt())
