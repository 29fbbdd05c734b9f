"""What engines counted meanwhile, from their Prometheus pages."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from contraflow.cli.deployment.errors import DeploymentError
from contraflow.cli.deployment.http_client import HttpFailure, get
from contraflow.cli.deployment.metrics import Samples, parse_samples

_NO_COUNTERS = ("_bucket", "_created")
_SHOWN = (
    "vllm:prompt_tokens_by_source", "vllm:generation_tokens", "vllm:prefix_cache",
    "vllm:external_prefix_cache", "vllm:nixl_", "vllm:request_prefill_time", "vllm:num_preemptions",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Page:
    """Whose page, and where: ``url`` with its path."""

    label: str
    url: str


class PageUnreadable(DeploymentError):
    """A page of metrics can not be read."""


async def read_pages(pages: Sequence[Page]) -> dict[str, Samples]:
    """The values of all, by label. Raises PageUnreadable."""
    return dict(zip([one.label for one in pages], await _all(pages), strict=True))


async def _all(pages: Sequence[Page]) -> list[Samples]:
    return await asyncio.gather(*map(_read, pages))


async def _read(page: Page) -> Samples:
    parts = urlsplit(page.url)
    path = parts.path if parts.path not in ("", "/") else "/metrics"
    try:
        return parse_samples(await get(page.url, path))
    except (HttpFailure, OSError, http.client.HTTPException, ValueError) as error:
        why = error or type(error).__name__
        raise PageUnreadable(
            f"the metrics at {page.url} can not be read: {why}; correct --metrics or leave it out"
        ) from None


def risen(before: Mapping[str, Samples], after: Mapping[str, Samples]) -> dict[str, Samples]:
    """What has changed, by label and metric; buckets of histograms left out."""
    return {
        label: {
            name: value - before[label].get(name, 0.0)
            for name, value in sorted(after[label].items())
            if not name.endswith(_NO_COUNTERS) and value != before[label].get(name, 0.0)
        }
        for label in after
    }


def worth_showing(changes: Samples) -> Samples:
    """Those that tell what prefill and transfers did."""
    return {name: value for name, value in changes.items() if name.startswith(_SHOWN)}
