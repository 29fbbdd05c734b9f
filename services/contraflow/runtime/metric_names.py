"""Every metric of the services, by component. Create them through ``runtime.metrics``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """Name (without ``_total``), help text and label names of one metric.

    ``buckets`` are upper bounds of a histogram, in the unit that the name ends in.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


DIRECTORY_ENGINES = Metric("contraflow_directory_engines", "Live engines in the view.")
DIRECTORY_SESSIONS = Metric("contraflow_directory_sessions", "Session records in the view.")
DIRECTORY_REVISION = Metric("contraflow_directory_revision", "Store revision of the view.")
DIRECTORY_IN_SYNC = Metric(
    "contraflow_directory_in_sync", "1 while the view follows the store, 0 while it is stale."
)
DIRECTORY_WATCHERS = Metric("contraflow_directory_watchers", "Open Watch calls.")

AGENT_ENGINES = Metric("contraflow_agent_engines", "Engines with a live link.")
AGENT_HANDLES = Metric(
    "contraflow_agent_handles", "Live handles of the attached engines.", ("state",)
)
AGENT_RETAINED_BLOCKS = Metric(
    "contraflow_agent_retained_blocks",
    "Blocks of the live handles; those that handles share are counted for each.",
)
AGENT_HANDLES_ENDED = Metric(
    "contraflow_agent_handles_ended", "Handles by how they ended.", ("state",)
)
AGENT_HANDLES_RELEASED = Metric(
    "contraflow_agent_handles_released",
    "Handles that were released: SUPERSEDED, ROOM (a request needed the blocks), BUDGET, ORDERED.",
    ("cause",),
)
AGENT_RENEWALS = Metric(
    "contraflow_agent_renewals",
    "Handles that were to be held for longer: RENEWED, or NOT_RENEWED by all workers.",
    ("outcome",),
)
AGENT_ACQUIRE_SECONDS = Metric(
    "contraflow_agent_acquire_seconds",
    "Time of an acquire at the agent, by GRANTED or the reason of its denial.",
    ("outcome",),
    (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5),
)
AGENT_PULLS = Metric("contraflow_agent_pulls", "Pulls that engines reported.", ("outcome",))
AGENT_PULL_TOKENS = Metric(
    "contraflow_agent_pull_tokens",
    "Tokens of reported pulls: offered, proven, local, pulled, computed.",
    ("kind",),
)
AGENT_PULL_BYTES = Metric("contraflow_agent_pull_bytes", "Bytes that reported pulls moved.")
