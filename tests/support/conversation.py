"""A conversation whose every answer is compared with the reference engine's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.cluster import Cluster, Reply


@dataclass
class Conversation:
    """``prompt`` holds the ids of the next turn's, all that was said before it included."""

    cluster: Cluster
    session: str
    prompt: list[int]
    router: int = 0
    reports: list[Mapping[str, str]] = field(default_factory=list)

    @classmethod
    def with_opening(cls, cluster: Cluster, length: int, router: int = 0) -> Conversation:
        """One that has yet to begin, with so many tokens."""
        return cls(cluster, cluster.session(), cluster.text(length), router)

    @property
    def home(self) -> str:
        """The engine that made the last answer; empty before the first."""
        return self.reports[-1]["decode"] if self.reports else ""

    async def turn(self, tokens: int = 40, **fields: Any) -> Reply:
        """A turn that goes well and is right."""
        reply = await self.cluster.turn(self.prompt, self.session, tokens, self.router, **fields)
        assert reply.status == 200, reply
        await self.heard(reply.ids, tokens, reply.report)
        return reply

    async def heard(self, ids: Sequence[int], tokens: int, report: Mapping[str, str]) -> None:
        """The answer to a turn of so many tokens has come: it is right, and more is said."""
        assert list(ids) == await self.cluster.reference(self.prompt, tokens), report
        self.reports.append(report)
        self.prompt += [*ids, *self.cluster.text(12)]
