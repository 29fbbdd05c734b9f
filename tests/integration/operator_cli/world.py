"""Commands in this process, run against servers that a test can speak for."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from click.testing import CliRunner, Result
from structlog.testing import capture_logs
from tests.support.fake_engine_link import FakeEngineLink
from tests.support.fake_router import FakeRouter
from tests.support.running_agent import RunningAgent, eventually

from contraflow.cli.commands import commands
from contraflow.core.handle import Handle
from contraflow.runtime.directory_client import DirectoryClient


@dataclass
class World:
    """decode-1 and prefill-1, each with an agent of its own; the directory gives pages of two."""

    environment: dict[str, str]
    client: DirectoryClient
    agent: RunningAgent
    decode: FakeEngineLink
    prefill: FakeEngineLink
    router: FakeRouter

    async def run(self, *args: str, answer: str = "") -> Result:
        """A command, in a thread beside the servers."""
        with capture_logs():  # or the servers' log lines would land in its output
            return await asyncio.to_thread(
                CliRunner().invoke, commands, args, input=answer, env=self.environment
            )

    async def told(self, *args: str, answer: str = "") -> str:
        """What a command prints that succeeds."""
        result = await self.run(*args, answer=answer)
        assert result.exit_code == 0, result.output
        assert "\x1b" not in result.output
        return result.stdout

    async def document(self, *args: str) -> Any:
        """What it prints as JSON."""
        return json.loads(await self.told(*args, "--json"))

    async def failure(self, *args: str, answer: str = "") -> str:
        """The one line that it says when it fails."""
        result = await self.run(*args, answer=answer)
        assert result.exit_code == 1, result.output
        lines = result.stderr.splitlines()
        assert lines[-1].startswith("contraflow: "), result.output
        return lines[-1]

    async def handle_ids(self, *args: str) -> list[str]:
        """The ids that ``handles`` shows."""
        return [one["handle_id"] for one in (await self.document("handles", *args))["handles"]]

    async def known(self, *handles: Handle) -> None:
        """Return once the agents know just these handles."""
        expected = sorted(handle.handle_id for handle in handles)

        async def as_expected() -> bool:
            return await self.handle_ids() == expected

        await eventually(as_expected, f"the agents know {expected}")

    async def published(self, count: int) -> None:
        """Return once the directory knows both engines and so many sessions."""

        async def known() -> bool:
            engines = await self.document("ps")
            sessions = await self.document("sessions")
            return len(engines["engines"]) >= 2 and len(sessions["sessions"]) == count

        await eventually(known, f"{count} sessions are published")
