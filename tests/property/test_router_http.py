"""Splicing equals what json would do, and the stream filter does not care about the cuts."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contraflow.web import (
    SseFilter,
    decode_body,
    parse_body,
    prefill_body,
    remove_key,
    take_transfer_params,
)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = st.none() | st.booleans() | st.integers() | text | st.floats(allow_nan=False, width=32)
finite = scalars.filter(lambda v: not isinstance(v, float) or abs(v) < float("inf"))
values = st.recursive(
    finite,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
keys = text | st.sampled_from(
    ["model", "messages", "stream", "max_tokens", "max_completion_tokens", "min_tokens",
     "stream_options", "kv_transfer_params", "session_id"]
)  # fmt: skip
STRIPPED_TOO = ("ec_transfer_params", "vllm_xargs")
objects = st.dictionaries(keys.filter(lambda k: k not in STRIPPED_TOO), values, max_size=6)
layouts = st.sampled_from(
    [{"ensure_ascii": False}, {"separators": (",", ":")}, {"indent": 1}, {"indent": "\t"}]
)


def without(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in names}


@given(objects, layouts, st.dictionaries(text, values, max_size=3))
def test_decode_body_is_the_clients_body_with_our_parameters(
    sent: dict[str, Any], layout: dict[str, Any], params: dict[str, Any]
) -> None:
    body = parse_body(json.dumps(sent, **layout).encode())
    assert body.stripped == ("kv_transfer_params" in sent)
    assert json.loads(decode_body(body.fields, None)) == without(sent, "kv_transfer_params")
    expected = {**without(sent, "kv_transfer_params"), "kv_transfer_params": params}
    assert json.loads(decode_body(body.fields, params)) == expected
    for key, raw in body.fields.items():
        assert json.loads(bytes(raw)) == sent[key]
        assert bytes(raw) in json.dumps(sent, **layout).encode()


@given(objects)
def test_prefill_body_changes_only_what_it_must(sent: dict[str, Any]) -> None:
    fields = parse_body(json.dumps(sent).encode()).fields
    dropped = ("max_completion_tokens", "min_tokens", "stream_options")
    ours = {"stream": False, "max_tokens": 1, "kv_transfer_params": {"a": 1}}
    assert json.loads(prefill_body(fields, {"a": 1})) == {**without(sent, *dropped), **ours}


@given(values, text)
def test_removing_a_key_equals_json(value: Any, key: str) -> None:
    data = json.dumps(value).encode()
    cleaned, raw = remove_key(data, key)
    if isinstance(value, dict) and key in value:
        assert json.loads(cleaned) == without(value, key)
        assert raw is not None
        assert json.loads(raw) == value[key]
    else:
        assert cleaned is data
        assert raw is None


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    events = []
    for _ in range(draw(st.integers(0, 5))):
        value = draw(objects | values)
        end = draw(st.sampled_from([b"\n\n", b"\r\n\r\n"]))
        prefix = draw(st.sampled_from([b"data: ", b"data:", b": ", b"event: x\ndata: "]))
        events.append(prefix + json.dumps(value).encode() + end)
    tail = draw(st.sampled_from([b"", b"data: [DONE]\n\n", b"data: {", b"\n", b"\r", b"\r\n"]))
    return b"".join(events) + tail


@given(streams(), st.lists(st.integers(0, 400), max_size=12))
def test_cuts_do_not_matter(stream: bytes, cuts: list[int]) -> None:
    whole = SseFilter()
    expected = whole.feed(stream) + whole.finish()
    pieces = SseFilter()
    marks = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    fed = [pieces.feed(stream[a:b]) for a, b in itertools.pairwise(marks)]
    assert b"".join(fed) + pieces.finish() == expected
    assert pieces.raw_transfer_params == whole.raw_transfer_params
    if b'"kv_transfer_params"' not in stream:
        assert expected == stream


@given(st.lists(objects, max_size=4))
def test_the_filter_equals_cleaning_each_event(sent: list[dict[str, Any]]) -> None:
    bodies = [json.dumps(value).encode() for value in sent]
    sse = SseFilter()
    out = sse.feed(b"".join(b"data: %b\n\n" % body for body in bodies))
    cleaned = [take_transfer_params(body) for body in bodies]
    assert out == b"".join(b"data: %b\n\n" % body for body, _ in cleaned)
