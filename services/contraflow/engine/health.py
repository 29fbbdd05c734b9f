"""Whether an OpenAI server answers."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

_LONGEST_STATUS_LINE = 1024  # bytes


async def is_healthy(endpoint: str, timeout: float) -> bool:
    """True if ``GET {endpoint}/health`` gets status 200 within ``timeout`` seconds."""
    try:
        async with asyncio.timeout(timeout):
            return await _status(endpoint) == 200
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
        return False


async def _status(endpoint: str) -> int:
    url = urlsplit(endpoint)
    secure = url.scheme == "https"
    reader, writer = await asyncio.open_connection(
        url.hostname,
        url.port or (443 if secure else 80),
        ssl=True if secure else None,
        limit=_LONGEST_STATUS_LINE,
    )
    try:
        request = (
            f"GET {url.path.rstrip('/')}/health HTTP/1.1\r\n"
            f"Host: {url.netloc}\r\nConnection: close\r\n\r\n"
        )
        writer.write(request.encode("ascii"))
        await writer.drain()
        protocol, status, *_ = (await reader.readline()).split(maxsplit=2)
        return int(status) if protocol.startswith(b"HTTP/1.") else 0
    finally:
        writer.close()
