"""Generate's two translations take anything: requests to bodies, events to chunks."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contraflow.core.errors import InvalidArgument
from contraflow.router.generate_events import EventReader
from contraflow.router.generate_request import http_request
from contraflow.v1 import router_service_pb2 as pb

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
keys = text | st.sampled_from(
    ["model", "stream", "stream_options", "max_tokens", "choices", "usage", "delta", "type",
     "error", "message", "index", "content", "text", "finish_reason", "prompt_tokens",
     "prompt_tokens_details", "cached_tokens", "code", "input_tokens"]
)  # fmt: skip
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | text
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=10,
)
objects = st.dictionaries(keys, values, max_size=5)
paths = st.sampled_from(["", "/v1/chat/completions", "/v1/completions", "/v1/messages"])


def body_of(request: pb.GenerateRequest) -> tuple[str, dict[str, Any]]:
    http = http_request(request, [], lambda: "first")
    return http.path, json.loads(http.body)


@given(objects, objects, paths, text, text)
def test_a_raw_body_wins_over_extras_and_settings_over_both(
    body: dict[str, Any], extra: dict[str, Any], path: str, model: str, session: str
) -> None:
    for fields in (body, extra):
        if not isinstance(fields.get("stream_options"), dict | None):
            fields["stream_options"] = {"include_usage": False, "kept": 1}
    request = pb.GenerateRequest(
        raw=pb.RawRequest(path=path, json=json.dumps(body)),
        extra_json=json.dumps(extra),
        model=model,
        session_id=session,
    )
    sent_to, sent = body_of(request)
    expected = {**extra, **body, "stream": True}
    expected |= {"model": model} if model else {}
    expected |= {"session_id": session} if session else {}
    if sent_to == "/v1/messages":
        expected.setdefault("model", "first")
    else:
        options = expected.get("stream_options") or {}
        expected["stream_options"] = {**options, "include_usage": True}
    assert sent == expected
    assert sent_to == (path or "/v1/chat/completions")


@given(st.text(st.characters(exclude_categories=["Cs"])) | objects.map(json.dumps), paths)
def test_any_text_is_a_body_or_an_invalid_argument(raw: str, path: str) -> None:
    request = pb.GenerateRequest(raw=pb.RawRequest(path=path, json=raw))
    with suppress(InvalidArgument):
        assert body_of(request)[1]["stream"] is True


@given(st.lists(objects | values, max_size=5))
def test_any_event_is_a_chunk_an_error_or_nothing(events: list[Any]) -> None:
    reader = EventReader()
    for event in events:
        data = json.dumps(event)
        failed = reader.error is not None
        chunks = list(reader.chunks(f"data: {data}\n\n".encode()))
        assert all(json.loads(chunk.json) == event for chunk in chunks)
        assert not (failed and chunks)
        if not isinstance(event, dict):
            assert reader.error is not None


@given(st.binary(max_size=200))
def test_any_bytes_are_read(data: bytes) -> None:
    list(EventReader().chunks(data))


@given(st.lists(st.tuples(text, st.booleans()), max_size=6))
def test_the_text_of_all_chunks_is_that_of_the_events_however_they_come(
    parts: list[tuple[str, bool]],
) -> None:
    reader = EventReader()
    pieces, buffer = [], b""
    for said, cut in parts:
        event = {"choices": [{"index": 0, "delta": {"content": said}}]}
        buffer += f"data: {json.dumps(event)}\n\n".encode()
        if cut:
            pieces.append(buffer)
            buffer = b""
    pieces.append(buffer + b"data: [DONE]\n\n")
    chunks = [chunk for piece in pieces for chunk in reader.chunks(piece)]
    assert "".join(chunk.text for chunk in chunks) == "".join(said for said, _ in parts)
    assert reader.done
    assert reader.begun is bool(chunks)
