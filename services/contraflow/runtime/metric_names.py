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
DIRECTORY_WATCHERS_CUT = Metric(
    "contraflow_directory_watchers_cut", "Watch calls ended because their reader was too slow."
)
