"""What proofs and parameters cost per 1,000 tokens: ``python -m contraflow.bench.chain``.

Times are also given as multiples of one bare SHA-256 over the same tokens, which tells more
than microseconds do on a busy machine.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from contraflow.core.chain import Chain, Context
from contraflow.core.instructions import proof_from_json, proof_to_json
from contraflow.core.transfer_params import Params
from contraflow.v1.transfer_params_pb2 import TransferParams
from contraflow.wire.params import params_from_proto, params_to_proto

BLOCK_SIZE = 16
LENGTHS = (24_000, 100_000)
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Cost:
    """Best of some rounds, in seconds for all ``tokens``; ``bare`` is SHA-256 over them."""

    what: str
    tokens: int
    seconds: float
    bare: float

    @property
    def microseconds_per_1000(self) -> float:
        """Microseconds for 1,000 tokens."""
        return self.seconds * 1e9 / self.tokens

    @property
    def ratio(self) -> float:
        """Times the bare hash."""
        return self.seconds / self.bare


def measure(tokens: int, rounds: int = _ROUNDS) -> Iterator[Cost]:
    """The costs at one prompt length, in tokens."""
    prompt = [i * 2_654_435_761 % 151_936 for i in range(tokens)]
    raw = b"".join(token.to_bytes(4, "little") for token in prompt)
    context = Context("bench", BLOCK_SIZE)
    owner = Chain(context)
    proof = owner.proof(prompt, tokens)
    half = [*prompt[: tokens // 2], *([0] * (tokens // 2))]
    forked = Chain(context)
    forked.extend(half)
    params = _params(tokens)
    bare = _best(lambda: hashlib.sha256(raw).digest(), rounds)

    def codec() -> Params:
        wire = params_to_proto(params).SerializeToString()
        return params_from_proto(TransferParams.FromString(wire))

    tried: dict[str, Callable[[], object]] = {
        "bare SHA-256": lambda: hashlib.sha256(raw).digest(),
        "chain, whole prompt": lambda: Chain(context).extend(prompt),
        "check of a proof, chain known": lambda: owner.proven(proof, prompt),
        "the same, half in common": lambda: forked.proven(proof, half),
        "proof to JSON and back": lambda: proof_from_json(proof_to_json(proof)),
        "transfer parameters to protobuf and back": codec,
    }
    for what, run in tried.items():
        yield Cost(what, tokens, _best(run, rounds), bare)


def _params(tokens: int) -> Params:
    return {
        "do_remote_prefill": False,
        "do_remote_decode": True,
        "remote_block_ids": [list(range(tokens // BLOCK_SIZE))],
        "remote_engine_id": "bench",
        "remote_request_id": "cmpl-bench",
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "tp_size": 8,
        "remote_num_tokens": tokens,
        "remote_blocks_expiry_time": 1234.5,
        "transfer_mode": "pull",
    }


def _best(run: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Print the table."""
    table = Table(title=f"blocks of {BLOCK_SIZE} tokens")
    table.add_column("what")
    for column in ("tokens", "µs / 1,000 tokens", "× bare SHA-256"):
        table.add_column(column, justify="right")
    for tokens in LENGTHS:
        for cost in measure(tokens):
            per_1000, ratio = f"{cost.microseconds_per_1000:,.2f}", f"{cost.ratio:,.2f}"
            table.add_row(cost.what, f"{tokens:,}", per_1000, ratio)
        table.add_section()
    Console().print(table)


if __name__ == "__main__":
    main()
