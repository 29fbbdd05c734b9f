"""Fake engines, real handle tables, real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.integration.turn_failures.cases import Case, case_of


@pytest.fixture
async def case() -> AsyncIterator[Case]:
    async with case_of() as case:
        yield case
