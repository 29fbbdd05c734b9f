"""How long a router waits for a claim: ``python -m contraflow.bench.acquire [--json]``.

Through a real agent process and the sim engine behind it, at several numbers of callers at
once. Bare gRPC calls to a server that does nothing are made in turn with it, for a busy machine
slows both.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click
import grpc
from rich.console import Console

from contraflow.bench.bare_server import METHOD
from contraflow.bench.samples import quantile
from contraflow.cli.deployment import MODEL_NAME, Deployment, DeploymentSpec, EngineKind
from contraflow.cli.deployment.control_plane import attached_engines
from contraflow.cli.deployment.http_client import post_json
from contraflow.cli.deployment.progress import ConsoleProgress, Progress
from contraflow.cli.operate.output import print_json, print_table
from contraflow.core.instructions import Instructions
from contraflow.core.transfer_params import OURS
from contraflow.v1 import agent_service_pb2 as pb
from contraflow.v1.agent_service_pb2_grpc import AgentServiceStub

if TYPE_CHECKING:
    from contraflow.v1.agent_service_pb2_grpc import AgentServiceAsyncStub

CALLERS = (1, 8, 32)
CALLS = 1500
_ROUNDS = 3
_PROMPT_TOKENS = 256
_TENANT = "bench"
_OPTIONS = [("grpc.enable_http_proxy", 0)]

Call = Callable[[int], Awaitable[float]]
"""Makes a call for one of the callers; returns the seconds that it took."""


@dataclass
class Measured:
    """Seconds of all calls with so many ``callers`` at once."""

    callers: int
    acquire: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)

    def row(self) -> dict[str, float]:
        """Milliseconds, and times the bare call."""
        row: dict[str, float] = {"callers": self.callers, "calls": len(self.acquire)}
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            acquire, bare = quantile(self.acquire, share), quantile(self.bare, share)
            row |= {
                f"acquire_{name}_ms": acquire * 1000,
                f"bare_{name}_ms": bare * 1000,
                f"ratio_{name}": acquire / bare,
            }
        return row


async def measure(
    progress: Progress, callers: Sequence[int] = CALLERS, calls: int = CALLS
) -> list[Measured]:
    """Start what is needed, measure, end it. Raises DeploymentError."""
    spec = DeploymentSpec(
        engine=EngineKind.SIM, prefills=0, routers=0, blocks=4096, log_level="warning"
    )
    async with (
        Deployment(spec, progress=progress) as deployment,
        _bare_target() as bare_target,
        grpc.aio.insecure_channel(deployment.addresses.agent, _OPTIONS) as agent,
        grpc.aio.insecure_channel(bare_target, _OPTIONS) as bare,
    ):
        keys = [uuid.uuid4().hex for _ in range(max(callers))]
        for key in keys:
            await _retain(deployment, key)
        (engine,) = await attached_engines(deployment.addresses.agent)
        acquiring = _acquire(AgentServiceStub(agent), engine.engine.engine_id, keys)
        calling = _bare_call(bare.unary_unary(METHOD))
        results = []
        for count in callers:
            progress.waiting(f"{count} callers at once")
            results.append(measured := Measured(count))
            for _ in range(_ROUNDS):
                measured.bare += await _load(calling, count, calls // _ROUNDS)
                measured.acquire += await _load(acquiring, count, calls // _ROUNDS)
        return results


async def _load(call: Call, callers: int, calls: int) -> list[float]:
    async def caller(number: int) -> list[float]:
        return [await call(number) for _ in range(max(1, calls // callers))]

    await asyncio.gather(*map(call, range(callers)))  # connections and code are warm
    return [one for times in await asyncio.gather(*map(caller, range(callers))) for one in times]


def _acquire(agent: AgentServiceAsyncStub, engine_id: str, keys: Sequence[str]) -> Call:
    async def call(caller: int) -> float:
        claim_id = str(uuid.uuid4())
        request = pb.AcquireHandleRequest(
            claim_id=claim_id, tenant=_TENANT, session_key=keys[caller], engine_id=engine_id
        )
        start = time.perf_counter()
        await agent.AcquireHandle(request, timeout=10)
        taken = time.perf_counter() - start
        back = pb.ReturnClaimRequest(claim_id=claim_id, engine_id=engine_id)
        await agent.ReturnClaim(back, timeout=10)
        return taken

    return call


def _bare_call(method: grpc.aio.UnaryUnaryMultiCallable[Any, Any]) -> Call:
    payload = bytes(200)

    async def call(_: int) -> float:
        start = time.perf_counter()
        await method(payload, timeout=10)
        return time.perf_counter() - start

    return call


async def _retain(deployment: Deployment, key: str) -> None:
    told = Instructions(tenant=_TENANT, session_key=key).to_json()
    await post_json(
        deployment.engine("decode").endpoint,
        "/v1/completions",
        {
            "model": MODEL_NAME,
            "prompt": [100] * _PROMPT_TOKENS,
            "max_tokens": 1,
            "kv_transfer_params": {
                "do_remote_prefill": False, "do_remote_decode": False, OURS: told,
            },
        },
    )  # fmt: skip


@asynccontextmanager
async def _bare_target() -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "contraflow.bench.bare_server",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield f"127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.stdin.close()
        await process.wait()


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def main(as_json: bool) -> None:
    """How long a claim takes, beside a bare gRPC call."""
    progress = ConsoleProgress(Console(stderr=True))
    rows = [measured.row() for measured in asyncio.run(measure(progress))]
    if as_json:
        print_json(rows)
        return
    print_table(
        ["callers#", "acquire p50 ms#", "p99 ms#", "bare p50 ms#", "p99 ms#", "× p50#", "× p99#"],
        [
            (
                f"{row['callers']}",
                f"{row['acquire_p50_ms']:.2f}", f"{row['acquire_p99_ms']:.2f}",
                f"{row['bare_p50_ms']:.2f}", f"{row['bare_p99_ms']:.2f}",
                f"{row['ratio_p50']:.1f}", f"{row['ratio_p99']:.1f}",
            )
            for row in rows
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
