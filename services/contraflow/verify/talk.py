"""Conversations: they go on, fork, rewrite their history, pause for long, and end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Any

from contraflow.core.fleet import Role
from contraflow.sim.http.chat import chat_prompt
from contraflow.verify.client import Outcome, ask
from contraflow.verify.parts import RouterProcess
from contraflow.verify.reference import generate
from contraflow.verify.shape import BLOCK, MODEL, TENANTS
from contraflow.verify.world import World

_WORDS = ("alpha", "bravo", "carbon", "delta", "echo", "foxtrot", "gamma", "hotel", "india")
_LEAST_PROMPT, _MOST_PROMPT = 260, 480  # tokens: 32 blocks and a rest
_LOOK_UP_SECONDS = 10.0
"""So often somebody who pauses for long looks whether there are still turns to be had."""


@dataclass(slots=True)
class Turns:
    """Counts of a run. ``left``: turns that may still be begun."""

    left: int
    done: int = 0
    faulty: int = 0
    excused: int = 0
    blocks: int = 0


class Conversation:
    """One client. With a session id its prompts are token ids; without, messages."""

    def __init__(self, world: World, turns: Turns, number: int) -> None:
        self.world = world
        self.turns = turns
        self.random = Random(world.random.getrandbits(64))
        self.implicit = self.random.random() < 0.3
        self.tenant = self.random.choice(sorted(TENANTS))
        # Some ids are used by both tenants.
        self.session = f"session-{number // 2}"
        self.fresh()

    def fresh(self) -> None:
        """Begin anew, perhaps as others begin too."""
        common = self.random.random() < (0.6 if self.implicit else 0.2)
        opening = "the same " * 30 if common else self._text(_LEAST_PROMPT)
        first = "hello" if common and self.random.random() < 0.7 else self._text(20)
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": opening},
            {"role": "user", "content": first},
        ]
        self.prompt = list(f"{opening}{first}".encode())

    async def run(self) -> None:
        """Turn after turn until no more are to be begun."""
        while self.turns.left > 0:
            await self._pause(self._think())
            if self.turns.left <= 0:
                return
            if self._length() > _MOST_PROMPT:
                self.fresh()
            if self.random.random() < 0.05:
                await asyncio.gather(*(self._turn(fork=True) for _ in range(3)))
            else:
                await self._turn()

    async def _pause(self, seconds: float) -> None:
        while seconds > 0 and self.turns.left > 0:
            await asyncio.sleep(min(seconds, _LOOK_UP_SECONDS))
            seconds -= _LOOK_UP_SECONDS

    def _think(self) -> float:
        draw = self.random.random()
        if draw < 0.03:
            return self.random.uniform(60, 300)
        return self.random.expovariate(1 / 4.0)

    def _length(self) -> int:
        return len(chat_prompt(self.messages, ())) if self.implicit else len(self.prompt)

    async def _turn(self, *, fork: bool = False) -> None:
        world, turns = self.world, self.turns
        turns.left -= 1
        routers = world.routers()
        if not routers:
            await asyncio.sleep(1.0)
            return
        self._edit()
        tokens = self.random.randint(1, 12)
        path, body, prompt = self._request(tokens)
        patience = self.random.expovariate(1.0) if self.random.random() < 0.06 else None
        faults = world.net.faults.total()
        started = asyncio.get_running_loop().time()
        router = self.random.choice(routers)
        outcome = await ask(router, path, body, TENANTS[self.tenant], patience)
        turns.done += 1
        turns.blocks += len(prompt) // BLOCK
        turns.faulty += world.net.faults.total() != faults or outcome.left
        if outcome.left:
            world.net.count("CLIENT_LEFT")
        self._check(outcome, prompt, tokens, started, router)
        if outcome.whole and outcome.status == 200 and not fork:
            self._go_on(outcome)

    def _request(self, tokens: int) -> tuple[str, dict[str, Any], list[int]]:
        body: dict[str, Any] = {
            "model": MODEL, "temperature": 0, "ignore_eos": True, "max_tokens": tokens,
            "return_token_ids": True, "stream": self.random.random() < 0.5,
        }  # fmt: skip
        if self.random.random() < 0.03:
            body["prompt_logprobs"] = 1
        if self.random.random() < 0.2:
            body["kv_transfer_params"] = {"do_remote_prefill": True, "remote_host": "10.9.9.9"}
        if self.implicit:
            body["messages"] = list(self.messages)
            return "/v1/chat/completions", body, chat_prompt(self.messages, ())
        body |= {"prompt": list(self.prompt), "session_id": self.session}
        return "/v1/completions", body, list(self.prompt)

    def _edit(self) -> None:
        # Reasoning that is stripped, a template that drifts, a history that is rewritten.
        draw = self.random.random()
        if draw > 0.12:
            return
        if self.implicit:
            index = self.random.randrange(1, len(self.messages))
            said = self.messages[index]
            self.messages[index] = {**said, "content": said["content"][:-4] + "edit"}
        else:
            at = self.random.randrange(len(self.prompt) // 2, len(self.prompt))
            gone = self.random.choice((0, 1, 9))
            self.prompt[at : at + gone] = self._text(5).encode()

    def _go_on(self, outcome: Outcome) -> None:
        if self.random.random() < 0.04:
            return  # the same prompt once more
        if self.implicit:
            self.messages.append({"role": "assistant", "content": outcome.text})
            self.messages.append({"role": "user", "content": self._text(30)})
        else:
            self.prompt += outcome.ids + list(self._text(30).encode())

    def _check(
        self,
        outcome: Outcome,
        prompt: list[int],
        tokens: int,
        started: float,
        router: RouterProcess,
    ) -> None:
        world, report = self.world, outcome.report
        if outcome.leaked:
            world.violated("CLIENT_PARAMS", f"turn {report.get('turn')}: shown to its client")
        expected = generate(outcome.prompt or prompt, tokens)
        if outcome.ids != expected[: len(outcome.ids)]:
            world.violated("NEVER_WRONG", f"turn {report.get('turn')}: {outcome.ids} {expected}")
        for wrong in outcome.trace.wrong():
            world.violated("NOT_AGAIN", f"turn {report.get('turn')}: {wrong}")
        if outcome.hung:
            world.violated("NEVER_HANGS", f"a turn that began at {started:.3f} s has not ended")
        good = outcome.status == 200 and outcome.whole and outcome.ids == expected
        if good:
            self._count(report)
        elif not outcome.left and router.part.alive:
            if not self._may_fail(outcome, started, router):
                legs = outcome.trace.legs
                world.violated("NEVER_FAILS", f"{outcome.status} {outcome.error} {report} {legs}")
            self.turns.excused += 1

    def _may_fail(self, outcome: Outcome, started: float, router: RouterProcess) -> bool:
        if outcome.trace.legs:
            return outcome.trace.may_fail()
        world = self.world
        if world.decode_trouble_at >= started or world.down.total() > 0:
            return True
        # A new router has not yet heard of an engine whose agent is gone; the others are drained.
        decodes = [one for one in router.replica.known() if one.role is Role.DECODE]
        drained = {one.draining for one in decodes} == {True}
        return drained and world.a_decode_engine_is_unheard_of(router.heard)

    def _count(self, report: dict[str, str]) -> None:
        seen = self.world.seen
        seen[f"plan {report.get('reason')}"] += 1
        if outcome := report.get("outcome"):
            seen[f"pull {outcome}"] += 1
        if denial := report.get("denial"):
            seen[f"denied {denial}"] += 1
        for retry in filter(None, report.get("retried", "").split("+")):
            seen[f"retried {retry}"] += 1

    def _text(self, length: int) -> str:
        words: list[str] = []
        size = 0
        while size < length:
            words.append(f"{self.random.choice(_WORDS)}{self.random.randrange(100)}")
            size += len(words[-1]) + 1
        return " ".join(words)
