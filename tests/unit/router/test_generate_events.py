"""Events of either API as chunks and counts, and errors of HTTP as domain errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contraflow.core.errors import EngineFailed, NoEligibleEngine, Overloaded
from contraflow.router.generate_errors import of_engine, of_router
from contraflow.router.generate_events import EventReader
from contraflow.runtime.grpc_errors import RETRY_AFTER, to_status
from contraflow.v1 import router_service_pb2 as pb
from contraflow.web import ApiError


def read(*events: Any) -> tuple[list[pb.Chunk], EventReader]:
    reader = EventReader()
    data = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    return list(reader.chunks(data.encode())), reader


def test_each_choice_is_a_chunk_with_the_event_it_came_in() -> None:
    event = {"choices": [{"index": 1, "text": "a"}, {"index": 0, "delta": {"content": "b"}}]}
    chunks, _ = read(event)
    assert [(chunk.index, chunk.text) for chunk in chunks] == [(1, "a"), (0, "b")]
    assert {chunk.json for chunk in chunks} == {json.dumps(event)}


def test_reasoning_and_tool_calls_have_no_text_but_their_json() -> None:
    chunks, _ = read({"choices": [{"index": 0, "delta": {"reasoning": "hm", "content": None}}]})
    assert chunks[0].text == ""
    assert "hm" in chunks[0].json


def test_the_last_count_is_the_count() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 64}}
    _, reader = read(
        {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 1}},
        {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 5, **details}},
        {"choices": [], "usage": None},
    )
    assert reader.usage == pb.Usage(prompt_tokens=100, completion_tokens=5, cached_tokens=64)


def test_counts_of_the_messages_api_are_put_together() -> None:
    _, reader = read(
        {"type": "message_start", "message": {"usage": {"input_tokens": 30, "output_tokens": 0,
                                                        "cache_read_input_tokens": 70}}},
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 5}},
    )  # fmt: skip
    assert reader.usage == pb.Usage(prompt_tokens=100, completion_tokens=5, cached_tokens=70)


def test_parts_of_the_messages_api() -> None:
    chunks, reader = read(
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "to"}},
        {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    )
    assert [chunk.text for chunk in chunks] == ["to", "", "", ""]
    assert [chunk.finish_reason for chunk in chunks] == ["", "", "tool_use", ""]
    assert reader.done


def test_lines_beside_data_do_not_count() -> None:
    reader = EventReader()
    data = b': comment\r\nevent: x\r\nid: 7\r\ndata: {"choices":\r\ndata: []}\r\n\r\n'
    assert not list(reader.chunks(data))
    assert reader.error is None


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"error": "text"}', b"[" * 100_000])
def test_an_error_without_a_message_names_the_status(body: bytes) -> None:
    error = of_engine(502, (), body)
    assert isinstance(error, EngineFailed)
    assert "502" in str(error)


def test_an_answer_that_is_no_stream_is_a_failure() -> None:
    assert isinstance(of_engine(200, (), b'{"choices": []}'), EngineFailed)


@pytest.mark.parametrize(("value", "kept"), [(b"7", "7"), (b"soon", None), (b"9" * 400, None)])
def test_the_time_to_retry_after_is_passed_on(value: bytes, kept: str | None) -> None:
    error = of_engine(429, ((b"retry-after", value),), b"")
    assert isinstance(error, Overloaded)
    assert error.metadata.get(RETRY_AFTER) == kept
    assert to_status(error).details


def test_503_of_the_router_means_that_no_engine_is_there() -> None:
    assert isinstance(of_router(ApiError(503, "no engine")), NoEligibleEngine)
    assert isinstance(of_engine(503, (), b""), EngineFailed)


def test_long_messages_are_cut_to_what_a_status_can_carry() -> None:
    body = json.dumps({"error": {"message": "é" * 100_000, "param": "p" * 100_000}}).encode()
    assert len(to_status(of_engine(400, (), body)).SerializeToString()) < 2000
