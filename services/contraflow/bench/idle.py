"""How long a request waits for an engine that idle conversations have filled, with Contraflow and
with vLLM's own NixlConnector: ``python -m contraflow.bench.idle [--json] [--engine sim]``.

Both deployments run at once and are measured in turn: a busy machine slows both. A round fills
the decode engine with conversations that nobody continues, then sends one plain request to it.
vLLM's connector frees nothing before the lease of a conversation ends, so that the lease is set
to seconds here.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import click
from rich.console import Console

from contraflow.bench.samples import quantile
from contraflow.cli.deployment import MODEL_NAME, Deployment, DeploymentSpec, EngineKind
from contraflow.cli.deployment.http_client import post_json
from contraflow.cli.deployment.progress import ConsoleProgress, Progress
from contraflow.cli.operate.output import print_json, print_table
from contraflow.core.fleet import Role
from contraflow.core.transfer_params import OURS, for_decode, for_plain_prefill

ROUNDS = 3
LEASE_SECONDS = 20.0
_BLOCKS, _BLOCK_SIZE = 192, 32
_CONVERSATIONS = 7
_IDLE_TOKENS = 20 * _BLOCK_SIZE  # of one conversation: together three quarters of the pool
_PLAIN_TOKENS = 50 * _BLOCK_SIZE  # more than the last quarter
_METRICS_LAG_SECONDS = 1.5
_FREE_SECONDS = 120.0
_USAGE = "vllm:kv_cache_usage_perc"


@dataclass
class Measured:
    """One deployment: shares of the pool that were pinned as the request came, seconds that it
    took, and seconds of the same on an engine that nothing was pinned on."""

    name: str
    pinned: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """Medians, and times the request on an idle engine."""
        wait, idle = quantile(self.waits, 0.5), quantile(self.idle, 0.5)
        return {
            "connector": self.name,
            "rounds": len(self.waits),
            "pinned": quantile(self.pinned, 0.5),
            "idle_s": idle,
            "wait_s": wait,
            "longest_wait_s": max(self.waits),
            "ratio_to_idle": wait / idle,
        }


class _Arm:
    """A deployment and its conversations."""

    def __init__(self, name: str, deployment: Deployment) -> None:
        self.measured = Measured(name)
        self._deployment = deployment
        self._decode = deployment.engine(Role.DECODE).endpoint
        self._random = random.Random(7)

    async def round(self) -> None:
        """Nothing may be pinned when it begins."""
        self.measured.idle.append(await self._plain())
        self.measured.pinned.append(await self._fill())
        self.measured.waits.append(await self._plain())

    async def until_free(self) -> None:
        """Returns once the leases of all conversations have ended."""
        async with asyncio.timeout(_FREE_SECONDS):
            while await self._pinned() > 0.01:  # noqa: ASYNC110 -- another process
                await asyncio.sleep(0.5)

    async def _fill(self) -> float:
        """Idle conversations; the share of the pool that they pin."""
        for _ in range(_CONVERSATIONS):
            await self._converse()
        await asyncio.sleep(_METRICS_LAG_SECONDS)
        return await self._pinned()

    async def _converse(self) -> None:
        body = self._body(_IDLE_TOKENS)
        if self._deployment.routers:
            door = self._deployment.routers[0].http
            await post_json(door, "/v1/completions", body | {"session_id": str(uuid.uuid4())})
            return
        # Both legs as a proxy for vLLM's own connector sends them: with nothing of ours.
        prefill = self._deployment.engine(Role.PREFILL).endpoint
        leg = body | {"max_tokens": 1, "kv_transfer_params": for_plain_prefill()}
        answer = await post_json(prefill, "/v1/completions", leg)
        params = for_decode(answer["kv_transfer_params"])
        params.pop(OURS, None)
        leg = body | {"kv_transfer_params": params}
        await post_json(self._decode, "/v1/completions", leg)

    async def _plain(self) -> float:
        start = time.perf_counter()
        await post_json(self._decode, "/v1/completions", self._body(_PLAIN_TOKENS))
        return time.perf_counter() - start

    def _body(self, tokens: int) -> dict[str, Any]:
        prompt = [self._random.randrange(40, 120) for _ in range(tokens)]
        return {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 2, "ignore_eos": True}

    async def _pinned(self) -> float:
        engine = self._deployment.engine(Role.DECODE)
        return (await self._deployment.metrics(engine))[_USAGE]


async def measure(
    progress: Progress,
    engine: EngineKind = EngineKind.VLLM,
    rounds: int = ROUNDS,
    lease: float = LEASE_SECONDS,
) -> list[Measured]:
    """Start both deployments, measure, end them. Raises DeploymentError."""
    both = DeploymentSpec(
        engine=engine,
        blocks=_BLOCKS,
        block_size=_BLOCK_SIZE,
        max_model_len=4096,
        retention_ttl=lease,
    )
    ours = replace(
        both,
        # Else the agent would not let them fill the pool, and would renew their leases.
        retention_budget=1.0,
        retention_max_idle=1.0,
    )
    stock = replace(
        both,
        connector="NixlConnector",
        connector_module=None,
        with_services=False,
        routers=0,
    )
    async with AsyncExitStack() as stack:
        arms = []
        for name, spec in (("Contraflow", ours), ("NixlConnector", stock)):
            progress.waiting(f"starting with {name}")
            deployment = Deployment(spec, progress=progress)
            arms.append(_Arm(name, await stack.enter_async_context(deployment)))
        for number in range(1, rounds + 1):
            for arm in arms:
                progress.waiting(f"round {number} of {rounds}: {arm.measured.name}")
                await arm.round()
                progress.done(f"{arm.measured.name} waited {arm.measured.waits[-1]:.2f} s")
            progress.waiting("until all leases have ended")
            for arm in arms:
                await arm.until_free()
        return [arm.measured for arm in arms]


def as_document(results: Sequence[Measured]) -> dict[str, Any]:
    """What ``--json`` prints: both rows, and how much longer the second waits."""
    ours, stock = (measured.row() for measured in results)
    return {
        "lease_s": LEASE_SECONDS,
        "connectors": [ours, stock],
        "ratio_of_waits": stock["wait_s"] / ours["wait_s"],
    }


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
@click.option("--engine", type=click.Choice([kind.value for kind in EngineKind]), default="vllm")
def main(as_json: bool, engine: str) -> None:
    """How long a request waits where idle conversations fill the pool."""
    progress = ConsoleProgress(Console(stderr=True))
    document = as_document(asyncio.run(measure(progress, EngineKind(engine))))
    if as_json:
        print_json(document)
        return
    print_table(
        ["connector", "pool pinned#", "idle s#", "pinned s#", "longest s#", "× idle#"],
        [
            (
                row["connector"], f"{row['pinned']:.0%}", f"{row['idle_s']:.2f}",
                f"{row['wait_s']:.2f}", f"{row['longest_wait_s']:.2f}",
                f"{row['ratio_to_idle']:.1f}",
            )
            for row in document["connectors"]
        ],
    )  # fmt: skip
    click.echo(
        f"leases of {LEASE_SECONDS:.0f} s; NixlConnector waits "
        f"{document['ratio_of_waits']:.1f} times as long"
    )


if __name__ == "__main__":
    main()
