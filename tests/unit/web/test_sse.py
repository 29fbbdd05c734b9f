"""The stream filter: untouched where there is nothing to take out."""

from __future__ import annotations

import json

import pytest

from contraflow.web import SseEventTooLarge, SseFilter, take_transfer_params

PARAMS = {"do_remote_prefill": True, "remote_block_ids": [[1, 2]], "x": 1e16}
TEXT = b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\n'
USAGE = b'data: {"usage": {"total_tokens": 3}}\n\n'
DONE = b"data: [DONE]\n\n"


def final(separator: bytes = b"\n\n") -> bytes:
    params = json.dumps(PARAMS).encode()
    head = b'data: {"choices": [ {"finish_reason":  "stop"} ], '
    return head + b'"kv_transfer_params": ' + params + b', "id": "c-1"}' + separator


def test_events_without_the_key_are_the_same_object() -> None:
    sse = SseFilter()
    for event in (TEXT, TEXT + USAGE, b"data: x\r\n\r\n", b": ping\n\n", DONE):
        assert sse.feed(event) is event
    assert sse.transfer_params is None


@pytest.mark.parametrize("separator", [b"\n\n", b"\r\n\r\n"])
def test_the_key_is_taken_out_and_the_rest_keeps_its_bytes(separator: bytes) -> None:
    sse = SseFilter()
    out = sse.feed(TEXT + final(separator) + USAGE + DONE)
    cleaned = b'data: {"choices":[ {"finish_reason":  "stop"} ],"id":"c-1"}' + separator
    assert out == TEXT + cleaned + USAGE + DONE
    assert sse.transfer_params == PARAMS
    assert sse.raw_transfer_params == json.dumps(PARAMS).encode()


def test_scenario_12_every_split_gives_the_same_stream() -> None:
    stream = TEXT + final() + final(b"\r\n\r\n") + USAGE + DONE
    whole = SseFilter().feed(stream)
    for cut in range(len(stream) + 1):
        sse = SseFilter()
        assert sse.feed(stream[:cut]) + sse.feed(stream[cut:]) + sse.finish() == whole
        assert sse.transfer_params == PARAMS
        assert sse.held == 0


def test_scenario_12_byte_by_byte_events_come_out_as_soon_as_they_end() -> None:
    sse = SseFilter()
    outs = [sse.feed(bytes([byte])) for byte in TEXT + DONE]
    assert [out for out in outs if out] == [TEXT, DONE]


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"choices": [{"delta": {"content": "kv_transfer_params"}}]}\n\n',
        b'data: {"choices": [{"delta": {"content": "say \\"kv_transfer_params\\": {}"}}]}\n\n',
        b'data: {"a": {"kv_transfer_params": {"b": 1}}}\n\n',
        b'data: {"a": ["kv_transfer_params"], "b" :1}\n\n',
        b'data: ["kv_transfer_params"]\n\n',
        b'data: not json "kv_transfer_params": {}\n\n',
        b': comment "kv_transfer_params"\n\n',
    ],
)
def test_the_mere_text_is_left_alone(event: bytes) -> None:
    sse = SseFilter()
    assert sse.feed(event) is event
    assert sse.feed(event[:9]) + sse.feed(event[9:]) == event
    assert sse.transfer_params is None
    assert sse.removed == 0


def test_null_is_removed_and_means_nothing() -> None:
    sse = SseFilter()
    assert sse.feed(b'data: {"kv_transfer_params":null,"a":1}\n\n') == b'data: {"a":1}\n\n'
    assert sse.transfer_params is None
    assert sse.removed == 1


def test_other_fields_of_the_event_stay() -> None:
    sse = SseFilter()
    event = b'event: chunk\ndata: {"kv_transfer_params":{},\ndata: "a":1}\nid: 7\n\n'
    assert sse.feed(event) == b'event: chunk\ndata: {"a":1}\nid: 7\n\n'
    assert sse.transfer_params == {}


def test_a_stream_that_ends_in_an_event_passes_the_rest_through() -> None:
    sse = SseFilter()
    assert sse.feed(TEXT + b'data: {"kv_transfer_params": {"a"') == TEXT
    assert sse.held == 33
    assert sse.finish() == b'data: {"kv_transfer_params": {"a"'
    assert sse.held == 0
    assert sse.finish() == b""


def test_scenario_12_a_huge_event_in_small_pieces() -> None:
    content = b"x" * (4 * 1024 * 1024)
    event = b'data: {"kv_transfer_params":{"a":1},"content":"' + content + b'"}\n\n'
    sse = SseFilter()
    out = b"".join([sse.feed(event[at : at + 1024]) for at in range(0, len(event), 1024)])
    assert out == b'data: {"content":"' + content + b'"}\n\n'
    assert sse.transfer_params == {"a": 1}


def test_an_endless_event_is_an_error() -> None:
    sse = SseFilter(max_event_bytes=100)
    sse.feed(b"data: " + b"x" * 94)
    with pytest.raises(SseEventTooLarge):
        sse.feed(b"x")


def test_a_whole_response_loses_only_the_key() -> None:
    data = b'{"id": "c", "kv_transfer_params": {"a": [1, 2]}, "choices": [ {"x": 1.50} ]}'
    assert take_transfer_params(data) == (
        b'{"id":"c","choices":[ {"x": 1.50} ]}',
        {"a": [1, 2]},
    )


@pytest.mark.parametrize(
    "data",
    [
        b'{"id": 1 }',
        b'{"text": "\\"kv_transfer_params\\": 1"}',
        b"[]",
        b"",
        b'"kv_transfer_params"',
    ],
)
def test_a_response_without_the_key_is_the_same_object(data: bytes) -> None:
    out, params = take_transfer_params(data)
    assert out is data
    assert params is None


@pytest.mark.parametrize("odd", ["NaN", "-Infinity", r'"\ud800"', r'{"\udc00": 1}'])
def test_what_only_python_reads_hides_no_parameters(odd: str) -> None:
    data = f'{{"odd": {odd}, "kv_transfer_params": {{"a": 1}}}}'.encode()
    cleaned, params = take_transfer_params(data)
    assert cleaned == f'{{"odd": {odd}}}'.encode()
    assert params == {"a": 1}
    sse = SseFilter()
    assert sse.feed(b"data: %b\n\n" % data) == b"data: %b\n\n" % cleaned
    assert sse.transfer_params == {"a": 1}
