"""Origins, headers and the error shape."""

from __future__ import annotations

import json

import pytest

from contraflow.web import (
    ApiError,
    ListenError,
    Origin,
    end_to_end,
    error_body,
    find_header,
    forwardable,
)
from contraflow.web.headers import render


@pytest.mark.parametrize(
    ("url", "host", "port", "text"),
    [
        ("http://engine:8100", "engine", 8100, "http://engine:8100"),
        ("http://127.0.0.1", "127.0.0.1", 80, "http://127.0.0.1:80"),
        ("http://10.0.0.1:8100/", "10.0.0.1", 8100, "http://10.0.0.1:8100"),
        ("http://[fd00::1]:8200", "fd00::1", 8200, "http://[fd00::1]:8200"),
        ("http://[::1]", "::1", 80, "http://[::1]:80"),
    ],
)
def test_scenario_14_origins(url: str, host: str, port: int, text: str) -> None:
    origin = Origin.parse(url)
    assert origin == (host, port)
    assert str(origin) == text
    assert Origin.parse(str(origin)) == origin


@pytest.mark.parametrize(
    "url",
    [
        "engine:8100",
        "https://engine:8100",
        "http://engine:8100/v1",
        "http://engine:8100?x",
        "http://user@engine:8100",
        "http://:8100",
        "http://fd00::1:8200",
        "http://engine:0",
        "http://engine:99999",
        "http://eng ine:80",
        "http://[fe80::1%25eth0]:80",
        "",
    ],
)
def test_what_is_no_origin(url: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Origin.parse(url)


def test_hop_by_hop_headers_end_here() -> None:
    headers = [
        (b"host", b"h"),
        (b"connection", b"close, X-Mine"),
        (b"x-mine", b"1"),
        (b"transfer-encoding", b"chunked"),
        (b"upgrade", b"h2c"),
        (b"content-length", b"3"),
        (b"x-other", b"2"),
    ]
    assert end_to_end(headers) == [(b"host", b"h"), (b"content-length", b"3"), (b"x-other", b"2")]
    assert forwardable([*headers, (b"accept-encoding", b"gzip")]) == [(b"x-other", b"2")]
    assert find_header(headers, b"x-mine") == b"1"
    assert find_header(headers, b"none") is None


@pytest.mark.parametrize("value", [b"a\r\nx: y", b"a\nb", b"a\rb", b"a\0b", b"\r\n", b"a\n\r"])
def test_no_header_can_smuggle_another(value: bytes) -> None:
    with pytest.raises(ValueError, match="header"):
        render([(b"x", value)])
    with pytest.raises(ValueError, match="header"):
        render([(value, b"x")])


def test_the_error_shape_is_vllms() -> None:
    assert json.loads(error_body(404, "no such model", param="model")) == {
        "error": {
            "message": "no such model",
            "type": "NotFoundError",
            "param": "model",
            "code": 404,
        }
    }
    assert json.loads(ApiError(418, "x").body())["error"]["type"] == "BadRequestError"
    assert json.loads(ApiError(599, "x").body())["error"]["type"] == "InternalServerError"


def test_a_listen_error_names_the_address() -> None:
    assert str(ListenError("::1", 8000, "in use")) == "cannot listen on [::1]:8000: in use"
