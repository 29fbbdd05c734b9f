"""Small HTTP requests to loopback, each on a thread of its own."""

from __future__ import annotations

import asyncio
import http.client
import json
from typing import Any
from urllib.parse import urlsplit


class HttpFailure(Exception):
    """The server answered with another status than 200. ``str(error)`` begins with it."""


def connect(base_url: str, timeout: float) -> http.client.HTTPConnection:
    """A connection to the host of a base URL; every wait on it ends after ``timeout`` seconds."""
    parts = urlsplit(base_url)
    assert parts.hostname is not None, base_url
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)


async def get(base_url: str, path: str, timeout: float = 10.0) -> str:
    """Body of a GET. Raises HttpFailure, or OSError if there is no answer."""
    return await asyncio.to_thread(_request, base_url, "GET", path, None, timeout)


async def post_json(base_url: str, path: str, body: object, timeout: float = 120.0) -> Any:
    """Parsed body of a POST. Raises HttpFailure, or OSError if there is no answer."""
    answer = await asyncio.to_thread(_request, base_url, "POST", path, body, timeout)
    return json.loads(answer)


async def answers(base_url: str, path: str = "/health") -> bool:
    """True if a GET is answered with 200."""
    try:
        await get(base_url, path, timeout=5.0)
    except (HttpFailure, OSError, http.client.HTTPException):
        return False
    return True


def _request(base_url: str, method: str, path: str, body: object, timeout: float) -> str:
    connection = connect(base_url, timeout)
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"content-type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
        if response.status != http.client.OK:
            raise HttpFailure(f"{response.status} for {method} {path}: {text[:500]}")
        return text
    finally:
        connection.close()
