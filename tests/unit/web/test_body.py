"""OpenAI bodies: what is refused, what is kept byte for byte, what each leg gets."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from contraflow.web import (
    BodyError,
    decode_body,
    get_str,
    parse_body,
    prefill_body,
)

MISS = {"do_remote_decode": True, "do_remote_prefill": False}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not valid JSON"),
        (b'{"a": 1', "not valid JSON"),
        (b'{"a": 1} x', "not valid JSON"),
        (b'{"a": [1,,2]}', "not valid JSON"),
        (b'{"a": "\x01"}', "not valid JSON"),
        (b'{"a": NaN}', "not valid JSON"),
        (b"[1]", "JSON object"),
        (b"null", "JSON object"),
        (b'"text"', "JSON object"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        (b'{"messages": [{"content": "\xc3"}]}', "not UTF-8"),
        (b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
    ],
)
def test_unreadable_bodies_are_refused(data: bytes, says: str) -> None:
    with pytest.raises(BodyError, match=says) as refused:
        parse_body(data)
    assert refused.value.status == 400
    assert json.loads(refused.value.body())["error"]["type"] == "BadRequestError"


def test_of_repeated_keys_the_last_counts() -> None:
    fields = parse_body(b'{"a": 1, "b": 2, "a": 3}').fields
    assert json.loads(decode_body(fields, None)) == {"a": 3, "b": 2}


@pytest.mark.parametrize(
    "data",
    [
        b'{"kv_transfer_params": {"remote_host": "x"}, "a": 1}',
        b'{"kv\\u005ftransfer_params": 1, "a": 1}',
        b'{"ec_transfer_params": null, "a": 1}',
        b'{"a": 1, "kv_transfer_params": null, "kv_transfer_params": {}}',
    ],
)
def test_transfer_parameters_of_the_client_are_removed(data: bytes) -> None:
    body = parse_body(data)
    assert body.stripped
    assert list(body.fields) == ["a"]


def test_transfer_parameters_inside_vllm_xargs_are_removed() -> None:
    body = parse_body(b'{"vllm_xargs": {"x": 1, "kv_transfer_params": "boom"}}')
    assert body.stripped
    assert bytes(body.fields["vllm_xargs"]) == b'{"x":1}'


def test_nothing_is_nested_so_deep_that_it_hides_transfer_parameters() -> None:
    # Where reading just succeeds for the body, it may fail for what is inside, or later.
    refused = 0
    for depth in range(800, 1000):
        hidden = b'{"kv_transfer_params": 1, "x": %b}' % (b"[" * depth + b"]" * depth)
        try:
            body = parse_body(b'{"vllm_xargs": %b}' % hidden)
        except BodyError:
            refused += 1
        else:
            assert b"kv_transfer_params" not in bytes(body.fields["vllm_xargs"])
    assert 0 < refused < 200


def test_harmless_bodies_are_not_called_stripped() -> None:
    body = parse_body(b'{"vllm_xargs": {"x": 1}, "messages": ["kv_transfer_params"]}')
    assert not body.stripped
    assert bytes(body.fields["vllm_xargs"]) == b'{"x": 1}'


def test_scalars_are_read() -> None:
    fields = parse_body(b'{"model": "m\\u00e9", "x": null}').fields
    assert get_str(fields, "model") == "mé"
    assert get_str(fields, "x") is None
    assert get_str(fields, "absent") is None


@pytest.mark.parametrize("raw", [b"1", b"true", b"1e999", b'{"a": 1}', b'["a"]'])
def test_a_wrong_string_is_named(raw: bytes) -> None:
    with pytest.raises(BodyError, match="`model`") as refused:
        get_str(parse_body(b'{"model": %b}' % raw).fields, "model")
    assert refused.value.param == "model"


CLIENT = (
    b'{"model": "m", "messages": [ {"role":"user",  "content": null} ], "stream": true,'
    b' "stream_options": {"include_usage": true}, "max_tokens": 50, "max_completion_tokens": 60,'
    b' "min_tokens": 7, "temperature": 0.10, "seed": 123456789012345678901234567890}'
)


def test_the_prefill_leg_makes_one_token_and_no_stream() -> None:
    sent = prefill_body(parse_body(CLIENT).fields, MISS)
    assert json.loads(sent) == {
        "model": "m",
        "messages": [{"role": "user", "content": None}],
        "stream": False,
        "max_tokens": 1,
        "temperature": 0.1,
        "seed": 123456789012345678901234567890,
        "kv_transfer_params": MISS,
    }
    assert b'[ {"role":"user",  "content": null} ]' in sent
    assert b"0.10" in sent


def test_the_decode_leg_is_the_clients_request() -> None:
    params = {"remote_block_ids": [[1, 2]], "later": {"a": [1.5, None]}, "expiry": 12345.123456789}
    sent = decode_body(parse_body(CLIENT).fields, params)
    assert json.loads(sent) == {**json.loads(CLIENT), "kv_transfer_params": params}
    assert b'[ {"role":"user",  "content": null} ]' in sent


def test_overrides_come_last_and_can_leave_out() -> None:
    overrides: dict[str, Any] = {
        "session_id": "0a1b",
        "max_tokens": 2,
        "temperature": msgspec.UNSET,
        "absent": msgspec.UNSET,
    }
    fields = parse_body(b'{"temperature": 1, "session_id": "mine", "model": "m"}').fields
    sent = json.loads(prefill_body(fields, MappingProxyType(MISS), overrides))
    assert sent["session_id"] == "0a1b"
    assert sent["max_tokens"] == 2
    assert "temperature" not in sent
    assert "absent" not in sent
    assert list(fields) == ["temperature", "session_id", "model"]


def test_raw_transfer_parameters_stay_as_they_are() -> None:
    params = {"a": msgspec.Raw(b"1.50"), "b": msgspec.Raw(b'"x"')}
    assert b'"kv_transfer_params":{"a":1.50,"b":"x"}' in decode_body({}, params)
