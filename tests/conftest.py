"""Settings for all tests: how many examples Hypothesis tries, and that a failure can be rerun."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("usual", deadline=None, print_blob=True)
settings.register_profile("full", deadline=None, print_blob=True, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "usual"))
