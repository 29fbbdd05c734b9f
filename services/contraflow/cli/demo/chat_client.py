"""A streaming client of ``/v1/chat/completions`` that keeps token ids and times."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from contraflow.cli.deployment.errors import DeploymentError
from contraflow.cli.deployment.http_client import connect

REPORT_HEADER = "x-contraflow"


class TurnFailed(DeploymentError):
    """A turn was answered with an error, or its stream broke."""


@dataclass
class Answer:
    """What came back for one turn. ``ttft`` is seconds from the request to the first token;
    ``report`` the text of the router's ``x-contraflow`` header."""

    prompt_ids: list[int] = field(default_factory=list)
    output_ids: list[int] = field(default_factory=list)
    content: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str = ""
    ttft: float = 0.0
    report: str = ""

    def message(self) -> dict[str, Any]:
        """The assistant's message for the history."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content or None}
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        return message

    def take(self, chunk: dict[str, Any]) -> None:
        """Add one chunk of the stream. Raises TurnFailed if it carries an error."""
        if "error" in chunk:
            raise TurnFailed(f"the stream ended with an error: {chunk['error']}")
        self.prompt_ids = chunk.get("prompt_token_ids") or self.prompt_ids
        for choice in chunk.get("choices", ()):
            self.output_ids += choice.get("token_ids") or ()
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            delta = choice.get("delta", {})
            self.content += delta.get("content") or ""
            for part in delta.get("tool_calls") or ():
                self._take_call(part)

    def _take_call(self, part: dict[str, Any]) -> None:
        while len(self.tool_calls) <= part["index"]:
            empty = {"name": "", "arguments": ""}
            self.tool_calls.append({"id": "", "type": "function", "function": empty})
        call = self.tool_calls[part["index"]]
        call["id"] = part.get("id") or call["id"]
        function = part.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""


def stream_chat(
    base_url: str,
    body: dict[str, Any],
    timeout: float = 120.0,
    now: Callable[[], float] = time.perf_counter,
) -> Answer:
    """Send a request and read its stream to the end; blocking.

    Raises TurnFailed, which quotes the server's error.
    """
    connection = connect(base_url, timeout)
    answer = Answer()
    try:
        start = now()
        data = json.dumps({**body, "stream": True}).encode()
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", data, headers)
        response = connection.getresponse()
        answer.report = response.getheader(REPORT_HEADER, "")
        if response.status != http.client.OK:
            text = response.read().decode(errors="replace")
            raise TurnFailed(f"{base_url} answered {response.status}: {text[:1000]}")
        for chunk in events(response):
            answer.take(chunk)
            if answer.output_ids and not answer.ttft:
                answer.ttft = now() - start
    except (OSError, http.client.HTTPException) as error:
        raise TurnFailed(f"{base_url}: {error or type(error).__name__}") from error
    finally:
        connection.close()
    return answer


def events(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects of an event stream. Raises TurnFailed if it ends without ``[DONE]``."""
    for line in lines:
        if not line.startswith(b"data:"):
            continue
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return
        yield json.loads(data)
    raise TurnFailed("the stream ended without [DONE]")
