"""Settings for all tests: how many examples Hypothesis tries, that a failure can be rerun, and
what happens to tests that need root."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings

from tests.support.root_only import RootOnly

settings.register_profile("usual", deadline=None, print_blob=True)
settings.register_profile("full", deadline=None, print_blob=True, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "usual"))


def pytest_configure(config: pytest.Config) -> None:
    """Before anything is collected."""
    config.pluginmanager.register(RootOnly())


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A service that runs in a test sets up logging for its process, which is ours."""
    yield
    structlog.reset_defaults()
