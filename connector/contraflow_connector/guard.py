"""Keeps our exceptions away from the engine: one that leaves a hook kills it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

log = logging.getLogger("vllm.contraflow")

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F")


def guarded(fallback: F) -> Callable[[Callable[P, R]], Callable[P, R | F]]:
    """Decorator: log any exception and return ``fallback`` instead.

    The fallback must be the safe answer: pull nothing, retain nothing.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R | F]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R | F:
            try:
                return function(*args, **kwargs)
            except Exception:
                log.exception("%s failed; the request goes on without us", function.__qualname__)
                return fallback

        return call

    return decorate
