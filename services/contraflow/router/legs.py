"""The two HTTP requests of a turn: what is sent to an engine, and what comes back of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from contraflow.core.fleet import Engine
from contraflow.core.instructions import Pull
from contraflow.core.transfer_params import OURS, Params
from contraflow.router.aborted import is_aborted
from contraflow.web import (
    Origin,
    Request,
    UpstreamClient,
    UpstreamResponse,
    decode_body,
    prefill_body,
    take_transfer_params,
)
from contraflow.web.client import Exchange
from contraflow.web.headers import HeaderPair, Headers
from contraflow.web.json_splice import Fields

_MAX_PREFILL_ANSWER_BYTES = 64 * 1024 * 1024
_FORWARDED = (b"traceparent", b"tracestate")
_origin = lru_cache(maxsize=4096)(Origin.parse)


@dataclass(frozen=True, slots=True)
class LegRequest:
    """What both legs of a turn have in common. ``leg_id`` goes into the engine's request id:
    unique, since vLLM aborts by it, and one client's id must not end another's request."""

    request: Request
    leg_id: str
    fields: Fields
    overrides: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PrefillAnswer:
    """A prefill engine's whole response, transfer parameters taken apart.

    ``params`` are the engine's own, None if there were none; ``tip`` and ``pull`` come from
    our connector in it. ``aborted``: the engine is being stopped.
    """

    status: int
    headers: Headers
    body: bytes
    params: Params | None = None
    tip: Any = None
    pull: Pull | None = None
    aborted: bool = False


class Legs:
    """Sends legs to engines."""

    def __init__(self, client: UpstreamClient, engine_api_key: str, decode_timeout: float) -> None:
        """``decode_timeout``: seconds until the headers of a decode leg's answer."""
        self._client = client
        self._credentials: tuple[HeaderPair, ...] = ()
        if engine_api_key:
            self._credentials = ((b"authorization", b"Bearer " + engine_api_key.encode()),)
        self._decode_timeout = decode_timeout

    def prefill(self, engine: Engine, leg: LegRequest, params: Params) -> Exchange:
        """The prefill leg, sent when its context is entered; ``prefill_answer`` reads it."""
        return self._client.request(
            "POST", _origin(engine.endpoint), leg.request.path,
            headers=self._headers(engine, leg),
            body=prefill_body(leg.fields, params, leg.overrides),
        )  # fmt: skip

    def decode(self, engine: Engine, leg: LegRequest, params: Params | None) -> Exchange:
        """The decode leg, sent when its context is entered. None: no transfer parameters."""
        return self._client.request(
            "POST", _origin(engine.endpoint), leg.request.path,
            headers=self._headers(engine, leg),
            body=decode_body(leg.fields, params, leg.overrides),
            header_timeout=self._decode_timeout,
        )  # fmt: skip

    def _headers(self, engine: Engine, leg: LegRequest) -> list[HeaderPair]:
        return [
            (b"content-type", b"application/json"),
            (b"x-request-id", leg.leg_id.encode()),
            # Rank 0 exists everywhere, and several engines may share the endpoint.
            (b"x-data-parallel-rank", b"%d" % engine.dp_rank),
            *_session(leg),
            *self._credentials,
            *(pair for pair in leg.request.headers if pair[0] in _FORWARDED),
        ]


def _session(leg: LegRequest) -> list[HeaderPair]:
    # The body says so too, but not all of vLLM's APIs look there.
    session_id = leg.overrides.get("session_id")
    return [(b"x-session-id", session_id.encode())] if isinstance(session_id, str) else []


async def prefill_answer(response: UpstreamResponse) -> PrefillAnswer:
    """Read a prefill leg's answer to its end. Raises UpstreamError."""
    data = await response.read(_MAX_PREFILL_ANSWER_BYTES)
    body, params = take_transfer_params(data)
    ours = params.pop(OURS, None) if params else None
    if not isinstance(ours, dict):
        ours = {}
    return PrefillAnswer(
        status=response.status,
        headers=response.headers,
        body=body,
        params=params,
        tip=ours.get("tip"),
        pull=Pull.from_json(ours.get("pull")),
        aborted=response.status == 200 and is_aborted(data),
    )
