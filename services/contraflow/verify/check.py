"""What must hold once the faults have stopped, and once everybody has gone."""

from __future__ import annotations

import asyncio

from contraflow.verify.client import ask
from contraflow.verify.engines import EngineProcess
from contraflow.verify.parts import PREFIX, AgentProcess, RouterProcess
from contraflow.verify.reference import generate
from contraflow.verify.shape import MODEL, TENANTS
from contraflow.verify.world import World

_HEALED_SECONDS = 45.0  # liveness TTL, backoffs and a renewal, each with room
_GRACE_SECONDS = 120.0


async def reuse_returns(world: World) -> None:
    """A while after the last fault every turn ends well, and the next one pulls."""
    world.whims.share = 0.0
    await asyncio.sleep(_HEALED_SECONDS)
    for number, router in enumerate(world.routers(healthy=False)):
        prompt = [65 + (7 * index + number) % 26 for index in range(200)]
        for turn in (1, 2):
            body = {
                "model": MODEL, "temperature": 0, "ignore_eos": True, "max_tokens": 40,
                "return_token_ids": True, "prompt": prompt, "session_id": f"healed-{number}",
            }  # fmt: skip
            outcome = await ask(router, "/v1/completions", body, TENANTS["acme"], None)
            report = outcome.report
            if outcome.status != 200 or outcome.ids != generate(prompt, 40):
                world.violated("REUSE_RETURNS", f"{outcome.status} {outcome.error} {report}")
            elif turn == 2 and not _reused(report):
                world.violated("REUSE_RETURNS", f"{router.part.name}: {report}")
            prompt = prompt + outcome.ids + [90] * 30
            await asyncio.sleep(3.0)


def _reused(report: dict[str, str]) -> bool:
    never = report.get("reason") == "INCOMPATIBLE" or report.get("denial") == "ENGINE_ID_REUSED"
    return never or report.get("decision") == "PULL"


async def nothing_is_left(world: World) -> None:
    """After the last lease: no handle, no block, no claim, no record, no errand."""
    shape = world.shape
    longest = max(ranks[0].retention_ttl for ranks in shape.engines)
    await asyncio.sleep(max(longest, shape.max_idle + shape.retention_ttl) + _GRACE_SECONDS)
    alive: set[str] = set()
    for name, process in world.processes.items():
        if isinstance(process, EngineProcess):
            for engine in process.engines:
                alive.add(engine.engine_id)
                for wrong in engine.idle():
                    world.violated("NOTHING_LEAKS", f"{engine.engine_id}: {wrong}")
        elif isinstance(process, AgentProcess):
            _check_agent(world, process)
        elif isinstance(process, RouterProcess):
            _check_router(world, name, process)
    recorded = await world.store.keys()
    expected = {f"{PREFIX}/engines/{engine_id}" for engine_id in alive}
    for key in sorted(recorded ^ expected):
        world.violated("NOTHING_LEAKS", f"{key} {'is' if key in recorded else 'is not'} recorded")


def _check_agent(world: World, agent: AgentProcess) -> None:
    assert agent.parts is not None
    for attachment in agent.parts.engines.attached():
        if left := len(attachment.mirror):
            world.violated("NOTHING_LEAKS", f"{agent.part.name} mirrors {left} handles")


def _check_router(world: World, name: str, router: RouterProcess) -> None:
    app = router.app
    if left := len(app._agents._errands):
        world.violated("NOTHING_LEAKS", f"{name} has {left} errands")
    if left := len(router.part.tasks) - 1:
        world.violated("NOTHING_LEAKS", f"{name} has {left} tasks beside the one it needs")
