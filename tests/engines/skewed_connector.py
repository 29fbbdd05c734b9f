"""A slow connector, in decode engines whose clock is days ahead of everybody else's. Loaded by
engines, in tests."""

from __future__ import annotations

import time
from typing import Any

from tests.engines.slow_connector import SlowConnector

# The test names it too, but can't import vLLM.
AHEAD = 3 * 86_400.0 + 10.0
_clock = time.perf_counter


def _decode_clock() -> float:
    return _clock() + AHEAD


class SkewedConnector(SlowConnector):
    """Sets the clock of its process before either half has looked at it."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        if extra["contraflow"]["role"] == "decode":
            time.perf_counter = _decode_clock
        super().__init__(vllm_config, role, kv_cache_config)
