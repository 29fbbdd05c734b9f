"""``contraflow demo``: starts a deployment, holds the conversation, checks every figure."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
from rich.console import Console

from contraflow.cli.demo.chat_client import Answer, stream_chat
from contraflow.cli.demo.figures import Outcome, TurnFigures, pulled_share
from contraflow.cli.demo.script import FIVE_TURNS, TOOLS, Conversation, ScriptedTurn
from contraflow.cli.demo.table import console as wide_console
from contraflow.cli.demo.table import render
from contraflow.cli.deployment import (
    MODEL_NAME,
    Deployment,
    DeploymentSpec,
    EngineKind,
    NotReady,
    PromptTokens,
    prompt_tokens,
)
from contraflow.cli.deployment.control_plane import plan_turn
from contraflow.cli.deployment.http_client import post_json
from contraflow.cli.deployment.progress import ConsoleProgress, Progress, Silent
from contraflow.cli.session import EXIT_FAILED, run_command
from contraflow.cli.up import ABOUT_ENGINES
from contraflow.core.fleet import Role
from contraflow.router.report import parse_header
from contraflow.router.tenancy import DEFAULT_TENANT
from contraflow.v1 import router_service_pb2

DEMO_SPEC = DeploymentSpec(routers=2, with_reference=True, sim_profile="cpu-demo")
_POLL_SECONDS = 0.1
_METRICS_SECONDS = 15.0
_VIEW_SECONDS = 15.0
_FORCED = (
    "The model is tiny and random. What it says makes no sense, and turns that end in a tool "
    "call are forced to by structured output; the engine parses the calls."
)


def run(engine: EngineKind = EngineKind.VLLM) -> int:
    """The whole demo on standard output; returns the exit status."""
    return run_command(partial(demo, replace(DEMO_SPEC, engine=engine), wide_console()))


async def demo(spec: DeploymentSpec, console: Console) -> int:
    """Start ``spec``, hold the conversation, print the result: 0 if all of it is as it must be.

    ``spec`` needs two routers and the reference. Raises DeploymentError or ConfigError.
    """
    progress = ConsoleProgress(console)
    start = time.monotonic()
    print_line = _printer(console)
    print_line(ABOUT_ENGINES[spec.engine])
    print_line(_FORCED)
    async with Deployment(spec, progress=progress) as deployment:
        seconds = dict(deployment.seconds)
        before = time.monotonic()
        status = await report_conversation(deployment, console, progress)
        seconds["conversation and checks"] = time.monotonic() - before
        before = time.monotonic()
    seconds["stop"] = time.monotonic() - before
    parts = ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items())
    print_line(f"time: {parts}; all {time.monotonic() - start:.1f} s")
    return status


async def report_conversation(
    deployment: Deployment, console: Console, progress: Progress | None = None
) -> int:
    """Hold the conversation on a running deployment and print what came of it; exit status."""
    progress = progress or Silent()
    print_line = _printer(console)
    outcome = await run_conversation(deployment, progress)
    progress.idle()
    print_line()
    console.print(render(outcome, console))
    print_line(outcome.verdict())
    problems = outcome.problems()
    for problem in problems:
        print_line(f"FAILED: {problem}")
    if problems:
        print_line(f"logs: {deployment.run_dir}")
    return EXIT_FAILED if problems else 0


def _printer(console: Console) -> Callable[..., None]:
    return partial(console.print, markup=False, highlight=False, soft_wrap=True)


async def run_conversation(
    deployment: Deployment,
    progress: Progress | None = None,
    script: Sequence[ScriptedTurn] = FIVE_TURNS,
) -> Outcome:
    """Hold the conversation on a running deployment and measure each turn.

    Nothing else may use its prefill engine meanwhile. Raises DeploymentError.
    """
    progress = progress or Silent()
    conversing = asyncio.ensure_future(_Run(deployment, progress).all_turns(script))
    dying = asyncio.ensure_future(deployment.death())
    try:
        await asyncio.wait({conversing, dying}, return_when=asyncio.FIRST_COMPLETED)
        if dying.done() and not (conversing.done() and not conversing.exception()):
            raise dying.result()
        return conversing.result()
    finally:
        conversing.cancel()
        dying.cancel()


class _Run:
    def __init__(self, deployment: Deployment, progress: Progress) -> None:
        self._deployment = deployment
        self._progress = progress
        self._prefill = deployment.engine(Role.PREFILL)
        self._session_id = f"demo-{uuid.uuid4()}"
        self._conversation = Conversation()
        self._counted = PromptTokens()
        self._previous: TurnFigures | None = None
        self._router = 0

    async def all_turns(self, script: Sequence[ScriptedTurn]) -> Outcome:
        self._counted = await self._count()
        turns = [await self._turn(number, turn) for number, turn in enumerate(script, 1)]
        return Outcome(tuple(turns))

    async def _turn(self, number: int, turn: ScriptedTurn) -> TurnFigures:
        router = self._deployment.routers[turn.router]
        self._progress.waiting(f"turn {number} on {router.name}")
        if self._previous and turn.router != self._router:
            await self._until_in_view(router.grpc, self._previous)
        self._router = turn.router
        self._conversation.say(turn)
        answer = await asyncio.to_thread(stream_chat, router.http, self._body(turn))
        self._conversation.hear(answer.message())
        reported = parse_header(answer.report)
        measured, reference = await asyncio.gather(
            self._measured(answer, reported), self._reference(answer, turn)
        )
        share = None
        if self._previous is not None:
            share = pulled_share(
                len(self._previous.prompt_ids), len(self._previous.output_ids),
                measured.local, measured.pulled,
            )  # fmt: skip
        self._previous = TurnFigures(
            number=number,
            router=router.name,
            prompt_ids=answer.prompt_ids,
            output_ids=answer.output_ids,
            reference_ids=reference,
            finish_reason=answer.finish_reason,
            measured=measured,
            reported=reported,
            ttft=answer.ttft,
            share=share,
        )
        self._progress.done(
            f"turn {number} on {router.name}: {measured.pulled} tokens pulled, "
            f"{len(answer.output_ids)} generated"
        )
        return self._previous

    def _body(self, turn: ScriptedTurn) -> dict[str, Any]:
        return {
            "model": MODEL_NAME,
            "session_id": self._session_id,
            # Whatever ran here before, P's own cache knows nothing of this conversation.
            "cache_salt": self._session_id,
            "messages": self._conversation.messages,
            "tools": TOOLS,
            "return_token_ids": True,
            **turn.sampling(),
        }

    async def _count(self) -> PromptTokens:
        return prompt_tokens(await self._deployment.metrics(self._prefill))

    async def _measured(self, answer: Answer, reported: dict[str, str]) -> PromptTokens:
        """What P's metrics rose by, once they have caught up with the turn."""
        expected_bytes = reported.get("bytes", "0")
        deadline = time.monotonic() + _METRICS_SECONDS
        while True:
            now = await self._count()
            risen = now - self._counted
            complete = risen.total == len(answer.prompt_ids) and str(risen.bytes) == expected_bytes
            if complete or time.monotonic() > deadline:
                self._counted = now
                return risen
            await asyncio.sleep(_POLL_SECONDS)

    async def _reference(self, answer: Answer, turn: ScriptedTurn) -> list[int]:
        """What one plain engine generates for the very same prompt."""
        body = {
            "model": MODEL_NAME,
            "prompt": answer.prompt_ids,
            "return_token_ids": True,
            **turn.sampling(),
        }
        endpoint = self._deployment.reference.endpoint
        output = await post_json(endpoint, "/v1/completions", body)
        return list(output["choices"][0]["token_ids"])

    async def _until_in_view(self, router: str, previous: TurnFigures) -> None:
        """Wait until a router that has not served this session knows its newest handle."""
        tokens = len(previous.prompt_ids) + len(previous.output_ids) - 1
        deadline = time.monotonic() + _VIEW_SECONDS
        while time.monotonic() < deadline:
            try:
                plan = await plan_turn(router, DEFAULT_TENANT, self._session_id, MODEL_NAME)
            except grpc.aio.AioRpcError as error:
                raise NotReady(f"{router} can not plan: {error.details()}") from error
            pull = plan.decision == router_service_pb2.DECISION_PULL
            if pull and plan.handle_tokens == tokens:
                return
            await asyncio.sleep(_POLL_SECONDS)
        raise NotReady(f"the session did not appear in the view of {router}")
