"""Worlds that live as long as a module: thousands of examples take seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.front_door import FrontDoor, front_door
from tests.fuzz.stage import Stage, staged


@pytest.fixture(scope="module")
def door() -> Iterator[Stage[FrontDoor]]:
    yield from staged(front_door())
