"""What the program runs, and what it shows beside how that went."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CASES: dict[str, Callable[[], None]] = {}
RETURNED: dict[str, Any] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    assert function.__name__ not in CASES, "one would hide the other"
    CASES[function.__name__] = function
    return function
