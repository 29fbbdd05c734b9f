"""What can go wrong with an upstream, with the facts that a caller decides by."""

from __future__ import annotations

from contraflow.web.origin import Origin


class UpstreamError(Exception):
    """A request to an upstream failed.

    `bytes_sent` False proves that the upstream saw nothing of the request: no prefill was started
    and no handle was read. True proves nothing either way. `response_started` says whether any
    byte of a response arrived, `reused` whether the connection had served a request before.
    """

    def __init__(
        self,
        origin: Origin,
        message: str,
        *,
        bytes_sent: bool,
        response_started: bool = False,
        reused: bool = False,
    ) -> None:
        super().__init__(f"{origin}: {message}")
        self.origin = origin
        self.bytes_sent = bytes_sent
        self.response_started = response_started
        self.reused = reused


class UpstreamConnectError(UpstreamError):
    """No connection could be made. `bytes_sent` is False."""

    def __init__(self, origin: Origin, message: str) -> None:
        super().__init__(origin, message, bytes_sent=False)


class UpstreamReset(UpstreamError):
    """The upstream closed the connection before its response was complete."""


class UpstreamTimeout(UpstreamError):
    """`phase` says what took too long: pool, connect, headers or body.

    `bytes_sent` is False for pool and connect.
    """

    def __init__(
        self,
        origin: Origin,
        phase: str,
        *,
        bytes_sent: bool,
        response_started: bool = False,
        reused: bool = False,
    ) -> None:
        super().__init__(
            origin,
            f"timed out ({phase})",
            bytes_sent=bytes_sent,
            response_started=response_started,
            reused=reused,
        )
        self.phase = phase


class UpstreamProtocolError(UpstreamError):
    """The upstream's answer is not acceptable HTTP/1.1, or larger than the caller's limit."""
