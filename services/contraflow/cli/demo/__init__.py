"""A five-turn agent conversation on real engines, and the proof that its KV comes back."""

from contraflow.cli.demo.figures import Outcome, TurnFigures
from contraflow.cli.demo.run import DEMO_SPEC, demo, run_conversation

__all__ = ["DEMO_SPEC", "Outcome", "TurnFigures", "demo", "run_conversation"]
