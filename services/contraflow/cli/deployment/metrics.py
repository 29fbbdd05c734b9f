"""What an engine counts: a few of the numbers on its ``/metrics`` page."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from contraflow.cli.deployment.http_client import get

_SAMPLE = re.compile(r"^(?P<name>[\w:]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_SOURCE = re.compile(r'(?:^|,)source="([^"]*)"')

Samples = dict[str, float]


@dataclass(frozen=True)
class PromptTokens:
    """Where the tokens of prompts came from, and bytes read from other engines."""

    pulled: int = 0
    local: int = 0
    computed: int = 0
    bytes: int = 0

    @property
    def total(self) -> int:
        """All tokens."""
        return self.pulled + self.local + self.computed

    def __sub__(self, other: PromptTokens) -> PromptTokens:
        names = [field.name for field in fields(self)]
        return PromptTokens(**{name: getattr(self, name) - getattr(other, name) for name in names})


def parse_samples(page: str) -> Samples:
    """Values by metric name, a ``source`` label appended as ``name[source]``; those that
    differ in other labels are added up."""
    samples: Samples = {}
    for line in page.splitlines():
        if found := _SAMPLE.match(line):
            source = _SOURCE.search(found["labels"] or "")
            name = f"{found['name']}[{source[1]}]" if source else found["name"]
            samples[name] = samples.get(name, 0.0) + float(found["value"])
    return samples


def prompt_tokens(samples: Samples) -> PromptTokens:
    """The counters of the prefill side; those that vLLM has not created yet are 0."""

    def tokens(source: str) -> int:
        return int(samples.get(f"vllm:prompt_tokens_by_source_total[{source}]", 0))

    return PromptTokens(
        pulled=tokens("external_kv_transfer"),
        local=tokens("local_cache_hit"),
        computed=tokens("local_compute"),
        bytes=int(samples.get("vllm:nixl_bytes_transferred_sum", 0)),
    )


async def scrape(endpoint: str) -> Samples:
    """The page of an engine, parsed. It lags about a second behind the engine."""
    return parse_samples(await get(endpoint, "/metrics"))
