"""What a world looks like: drawn once from its seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from contraflow.core.fleet import Role
from contraflow.sim.options import SimOptions

MODEL = "sim"
BLOCK = 8
MAX_MODEL_LEN = 1024
TENANTS = {"acme": "key-acme", "umbrella": "key-umbrella"}
DIRECTORIES = ("10.0.0.1:7400", "10.0.0.2:7400")
AGENTS = ("10.0.1.1:7410", "10.0.1.2:7410")


@dataclass(frozen=True, slots=True)
class Shape:
    """``engines``: the ranks of each engine process. ``retention_ttl``: what the agents renew
    to; seconds. ``fixed_ids``: the processes whose engine ids outlive them."""

    engines: tuple[tuple[SimOptions, ...], ...]
    routers: int
    conversations: int
    retention_ttl: float
    max_idle: float
    budget_share: float
    start_by: float
    max_read: float
    clock_offsets: float
    wall_skew: float
    fixed_ids: frozenset[str]
    slow_reads: float
    """Share of reads that are slow also in good weather."""
    decode_only_below: int
    """Bytes that a turn adds at most which its home computes itself."""


def draw(random: Random) -> Shape:
    """A fleet of one to three engines of each role on two nodes, mostly of one kind."""
    version = random.choice(("0.32", "0.33"))
    trimmable = random.random() < 0.8
    ttl = random.choice((14.0, 14.0, 30.0, 120.0))
    engines: list[tuple[SimOptions, ...]] = []
    for role in Role:
        for number in range(random.randint(1, 3)):
            odd = random.random() < 0.08
            engines.append(_process(random, role, number, version, trimmable is not odd, ttl))
    return Shape(
        engines=tuple(engines),
        routers=random.randint(1, 3),
        conversations=random.randint(8, 40),
        retention_ttl=max(ttl, 60.0) if random.random() < 0.5 else ttl,
        max_idle=random.choice((0.0, 0.0, 60.0, 240.0)),
        budget_share=random.choice((0.25, 0.5, 0.9)),
        start_by=6.0 if ttl < 30.0 else random.choice((6.0, 20.0)),
        max_read=random.choice((2.0, 3.0)),
        clock_offsets=random.choice((0.0, 10.0, 1e6)),
        wall_skew=random.choice((0.0, 10.0)),
        fixed_ids=frozenset({"decode-1"} if random.random() < 0.15 else ()),
        slow_reads=random.choice((0.0, 0.0, 0.3)),
        decode_only_below=random.choice((0, 0, 0, 200)),
    )


def _process(
    random: Random, role: Role, number: int, version: str, trimmable: bool, ttl: float
) -> tuple[SimOptions, ...]:
    decode = role is Role.DECODE
    name, node = f"{role}-{number + 1}", random.randrange(len(AGENTS))
    ranks = 2 if random.random() < 0.25 else 1
    blocks = random.choice((300, 600) if decode else (200, 500, 1200))
    kv_lease = random.choice((4.0, 30.0))
    profile = random.choice(("cpu-demo", "cpu-demo", "p5en-h200-efa"))
    octet = 10 * (1 + decode) + number
    return tuple(
        SimOptions(
            engine_id=f"{name}-dp{rank}",
            role=role,
            agent=f"unix:/agent-{node + 1}",
            endpoint=f"http://10.0.2.{octet}:8000",
            side_host=f"10.0.2.{octet}",
            side_port=5600,
            model=MODEL,
            served_model_names=(MODEL,),
            vllm_version=version,
            block_size=BLOCK,
            num_blocks=blocks,
            dp_rank=rank,
            trimmable=trimmable,
            retention_ttl=ttl,
            kv_lease=kv_lease,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=16,
            profile=profile,
        )
        for rank in range(ranks)
    )
