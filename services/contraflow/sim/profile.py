"""Cost profiles: how long an engine takes. Seconds and bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """``context_token`` is the cost of one computed prompt token for each token before it."""

    prompt_token: float
    context_token: float
    decode_step: float
    bytes_per_token: int
    pull_setup: float
    pull_bandwidth: float
    """Bytes a second; infinite for no time."""

    def prefill(self, start: int, end: int) -> float:
        """Seconds to compute prompt tokens [start, end)."""
        tokens = end - start
        return tokens * (self.prompt_token + self.context_token * (start + end) / 2)

    def pull(self, moved: int) -> float:
        """Seconds to read ``moved`` bytes of another engine's blocks."""
        return self.pull_setup + moved / self.pull_bandwidth


PROFILES = {
    "instant": Profile(0.0, 0.0, 0.0, 1024, 0.0, float("inf")),
    # Roughly the demo's model on one CPU core.
    "cpu-demo": Profile(1 / 3500, 0.0, 0.003, 8192, 0.005, 300e6),
    # Roughly a 32B model on one p5en node: a turn at 24k tokens starts after 0.78 s, or 0.46 s
    # with a pull, which breaks even near 940 tokens.
    "p5en-h200-efa": Profile(26e-6, 5e-10, 0.012, 262_144, 0.008, 15e9),
}
