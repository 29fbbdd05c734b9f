"""The reference's nodes under loads that were not published, in virtual time.

Clients hold one conversation after the other and think between its prompts. Each prefill node
computes one prompt at a time, first come first served; each node serves and does one read at a
time. Where a prompt goes, and whether it pulls or computes, is what lets its prefill end first as
far as is known when it comes. Decode nodes answer all that they have at the pace of one. What a
conversation leaves behind for the next pull is held until it is read, replaced, too old, or pushed
out by what is answered or came later. Costs are those of ``reference``, its faults included.
Seconds and bytes.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from contraflow.sim.reference import (
    HBM_PEAK,
    HOST_SECONDS_PER_TOKEN,
    PROMPTS,
    RANKS,
    REPLY_TOKENS,
    Architecture,
    EndPoint,
    Hardware,
    Quantity,
    compute,
    pull,
)

# Of an H200, and the share of it that vLLM takes by default.
_GPU_BYTES = 141e9
_GPU_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Load:
    """``conversations``: of each client, one after the other. ``prompts``: of each conversation.

    ``prefill``, ``decode``: nodes. ``caching``: prefill nodes keep what they have computed.
    ``think_seconds``: the mean, exponential. ``retained_share``: of a decode node's KV memory.
    """

    model: Architecture
    prefix: int
    bidirectional: bool
    caching: bool = False
    clients: int = 2
    prefill: int = 1
    decode: int = 1
    conversations: int = 1
    prompts: int = PROMPTS
    think_seconds: float = 10.0
    retention_seconds: float = 480.0
    retained_share: float = 0.5
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """``earlier``: prompts before it in its conversation."""

    conversation: int
    earlier: int
    ttft: float
    pulled: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """``seconds``: until the last reply. ``prefill_seconds``: that prefill nodes have computed.

    Bytes are held for pulls that may come: ``held_byte_seconds`` by all decode nodes,
    ``held_peak`` by the fullest one, ``held_at_end`` when what was left has become too old.
    ``pushed_out``: handles that gave way to later ones, or for which there was no room.
    """

    turns: tuple[Turn, ...]
    seconds: float
    prefill_seconds: float
    held_byte_seconds: float
    held_peak: int
    held_at_end: int
    pushed_out: int

    @property
    def turns_per_second(self) -> float:
        """Throughput."""
        return len(self.turns) / self.seconds

    def later_ttft(self, share: float) -> float:
        """The quantile of the prompts that follow others; of all if there are none."""
        later = [turn.ttft for turn in self.turns if turn.earlier]
        ordered = sorted(later or [turn.ttft for turn in self.turns])
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def kv_bytes(model: Architecture) -> int:
    """Of one token, all ranks together."""
    return RANKS * model.rank_kv_bytes


def kv_memory(model: Architecture) -> float:
    """What a node has for KV, beside the weights."""
    return RANKS * _GPU_BYTES * _GPU_SHARE - model.weight_bytes


@dataclass(frozen=True, slots=True)
class _Handle:
    tokens: int
    size: int


@dataclass(slots=True)
class _Node:
    reads_until: float = 0.0
    read_until: float = 0.0
    computes_until: float = 0.0
    cache: OrderedDict[int, int] = field(default_factory=OrderedDict)
    handles: OrderedDict[int, _Handle] = field(default_factory=OrderedDict)
    held: int = 0
    held_since: float = 0.0
    byte_seconds: float = 0.0
    peak: int = 0
    computed: float = 0.0
    answering: int = 0

    def hold(self, size: int, now: float) -> None:
        """Hold so many bytes more, or less."""
        self.byte_seconds += self.held * (now - self.held_since)
        self.held_since = now
        self.held += size
        self.peak = max(self.peak, self.held)


@dataclass(slots=True)
class _Prompt:
    conversation: int
    earlier: int
    tokens: int
    came: float
    then: Callable[[], None]
    pulled: bool = False


def simulate(load: Load, hardware: Hardware) -> Outcome:
    """Play the load; the same load gives the same outcome."""
    return _Run(load, hardware).play()


class _Run:
    def __init__(self, load: Load, hardware: Hardware) -> None:
        self._load, self._hardware, self._model = load, hardware, load.model
        self._point = EndPoint(load.model, Quantity.ON, load.prefix, 0.0)
        self._prefill = [_Node() for _ in range(load.prefill)]
        self._decode = [_Node() for _ in range(load.decode)]
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._turns: list[Turn] = []
        self._last_reply = 0.0
        self._pushed_out = 0

    def play(self) -> Outcome:
        for client in range(self._load.clients):
            self._think(client * self._load.conversations, 0)
        while self._events:
            self._now, _, action = heapq.heappop(self._events)
            action()
        return Outcome(
            tuple(self._turns),
            self._last_reply,
            sum(node.computed for node in self._prefill),
            sum(node.byte_seconds for node in self._decode),
            max(node.peak for node in self._decode),
            sum(node.held for node in self._decode),
            self._pushed_out,
        )

    def _at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), action))

    def _think(self, conversation: int, earlier: int) -> None:
        # The same pause whatever the nodes do, so that outcomes can be compared.
        drawn = random.Random(f"{self._load.seed} {conversation} {earlier}").expovariate(1.0)

        def done() -> None:
            if earlier + 1 < self._load.prompts:
                self._think(conversation, earlier + 1)
            elif (conversation + 1) % self._load.conversations:
                self._think(conversation + 1, 0)

        came = self._now + drawn * self._load.think_seconds
        prompt = _Prompt(conversation, earlier, self._point.prompt(earlier), came, done)
        self._at(came + self._server_seconds(prompt), lambda: self._place(prompt))

    def _server_seconds(self, prompt: _Prompt) -> float:
        return HOST_SECONDS_PER_TOKEN * prompt.tokens + self._hardware.request_seconds / 2

    def _home(self, conversation: int) -> _Node:
        return self._decode[conversation % len(self._decode)]

    def _place(self, prompt: _Prompt) -> None:
        home = self._home(prompt.conversation)
        handle = home.handles.get(prompt.conversation)
        ways = []
        for node in self._prefill:
            local = node.cache.get(prompt.conversation, 0)
            ways.append((self._ends(node, prompt, local, self._now), 0, local, node))
            if handle and handle.tokens > local:
                begins = max(self._now, node.reads_until, home.read_until)
                ready = begins + pull(self._model, handle.tokens - local).seconds(self._hardware)
                ways.append((self._ends(node, prompt, handle.tokens, ready), 1, local, node))
        _, pulls, local, node = min(ways, key=lambda way: way[:2])
        if not pulls or not handle:
            self._compute(node, prompt, local)
            return
        prompt.pulled = True
        del home.handles[prompt.conversation]

        def read() -> None:
            home.hold(-handle.size, self._now)
            self._compute(node, prompt, handle.tokens)

        self._read(node, home, handle.tokens - local, read)

    def _ends(self, node: _Node, prompt: _Prompt, has: int, ready: float) -> float:
        return max(ready, node.computes_until) + self._compute_seconds(prompt, has)

    def _compute_seconds(self, prompt: _Prompt, has: int) -> float:
        return compute(self._model, prompt.tokens - has, has).seconds(self._hardware)

    def _read(self, reader: _Node, owner: _Node, tokens: int, then: Callable[[], None]) -> None:
        begins = max(self._now, reader.reads_until, owner.read_until)
        ends = begins + pull(self._model, tokens).seconds(self._hardware)
        # Setting up keeps nobody else from reading.
        reader.reads_until = owner.read_until = ends - self._hardware.pull_setup_seconds
        self._at(ends, then)

    def _compute(self, node: _Node, prompt: _Prompt, has: int) -> None:
        node.computed += self._compute_seconds(prompt, has)
        node.computes_until = self._ends(node, prompt, has, self._now)
        self._at(node.computes_until, lambda: self._computed(node, prompt))

    def _computed(self, node: _Node, prompt: _Prompt) -> None:
        if self._load.caching:
            node.cache[prompt.conversation] = self._whole(prompt.tokens)
            node.cache.move_to_end(prompt.conversation)
            room = kv_memory(self._model) / kv_bytes(self._model)
            while sum(node.cache.values()) > room:
                node.cache.popitem(last=False)
        home = self._home(prompt.conversation)
        before = self._whole(self._point.prompt(prompt.earlier - 1) + REPLY_TOKENS)
        new = prompt.tokens - (before if prompt.earlier else 0)

        def take() -> None:
            home.answering += self._size(prompt)
            self._make_room(home, 0)
            self._read(home, node, new, lambda: self._decoded(home, prompt))

        self._at(self._now + self._server_seconds(prompt), take)

    def _whole(self, tokens: int) -> int:
        return tokens // self._model.block_tokens * self._model.block_tokens

    def _size(self, prompt: _Prompt) -> int:
        """Of all that a decode node has of it when it has replied."""
        return (prompt.tokens + REPLY_TOKENS) * kv_bytes(self._model)

    def _decoded(self, home: _Node, prompt: _Prompt) -> None:
        step = self._model.token_weight_bytes / HBM_PEAK * self._hardware.weight_read_slowdown
        ttft = self._now + step - prompt.came
        self._turns.append(Turn(prompt.conversation, prompt.earlier, ttft, prompt.pulled))
        self._at(self._now + REPLY_TOKENS * step, lambda: self._replied(home, prompt))

    def _replied(self, home: _Node, prompt: _Prompt) -> None:
        self._last_reply = self._now
        home.answering -= self._size(prompt)
        if self._load.bidirectional:
            self._retain(home, prompt)
        prompt.then()

    def _retain(self, home: _Node, prompt: _Prompt) -> None:
        self._release(home, prompt.conversation)
        handle = _Handle(self._whole(prompt.tokens + REPLY_TOKENS), self._size(prompt))
        self._make_room(home, handle.size)
        if handle.size > self._room(home):
            self._pushed_out += 1
            return
        home.handles[prompt.conversation] = handle
        home.hold(handle.size, self._now)

        def expire() -> None:
            if home.handles.get(prompt.conversation) is handle:
                self._release(home, prompt.conversation)

        self._at(self._now + self._load.retention_seconds, expire)

    def _room(self, home: _Node) -> float:
        memory = kv_memory(self._model)
        retained = min(self._load.retained_share * memory, memory - home.answering)
        return retained - home.held

    def _make_room(self, home: _Node, size: int) -> None:
        while self._room(home) < size and home.handles:
            self._pushed_out += 1
            self._release(home, next(iter(home.handles)))

    def _release(self, home: _Node, conversation: int) -> None:
        handle = home.handles.pop(conversation, None)
        if handle:
            home.hold(-handle.size, self._now)
