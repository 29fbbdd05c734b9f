"""Runs inside an engine environment: what vLLM's Messages API makes of the two legs of a turn.

Prints one JSON object: what the model's handler would be asked for on either leg, what the
response to a prefill leg holds, what becomes of a forced tool use that was cut, and of a request
that is aborted, whole and as a stream.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

if importlib.util.find_spec("orjson") is None:
    # A dependency that 0.33 has beyond those of the environment; the converter does without.
    sys.modules["orjson"] = json

from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionResponse,
    ChatCompletionStreamResponse,
)

PARAMS = {"do_remote_decode": True, "do_remote_prefill": False, "contraflow": {"turn_id": "t"}}
THINKING = {"thinking": {"type": "enabled", "budget_tokens": 2048}}


def asked(body: dict[str, Any]) -> dict[str, Any]:
    request = AnthropicMessagesRequest.model_validate(body)
    chat = AnthropicServingMessages.to_chat_completion_request(request)
    found: dict[str, Any] = json.loads(chat.model_dump_json(exclude_unset=True))
    return found


def answered(message: dict[str, Any], tokens: int = 1, reason: str = "stop") -> dict[str, Any]:
    said = {"role": "assistant", **message}
    response = ChatCompletionResponse.model_validate({
        "model": "tiny",
        "choices": [{"index": 0, "message": said, "finish_reason": reason}],
        "usage": {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens},
        "kv_transfer_params": {"remote_engine_id": "p"},
    })  # fmt: skip
    server = object.__new__(AnthropicServingMessages)
    converted = server.messages_full_converter(response)
    found: dict[str, Any] = converted.model_dump(exclude_none=True)
    return found


async def aborted_stream() -> list[str]:
    """The events that come of a chat stream that ends before it has said anything."""

    converter = AnthropicServingMessages.message_stream_converter
    as_text = "str" in str(inspect.signature(converter).parameters["generator"].annotation)

    async def chat() -> AsyncIterator[Any]:
        usage = {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}
        choices = [{"delta": {"role": "assistant", "content": ""}}]
        yield chunk(choices, usage)
        yield chunk([{"delta": {}, "finish_reason": "abort"}], usage)
        yield chunk([], usage)
        if as_text:
            yield "data: [DONE]\n\n"

    def chunk(choices: list[dict[str, Any]], usage: dict[str, int]) -> Any:
        indexed = [{"index": 0, **choice} for choice in choices]
        whole = {"id": "c", "created": 1, "model": "tiny", "usage": usage, "choices": indexed}
        # Text in 0.32, as the chat API sends it; the chunks themselves in 0.33.
        if as_text:
            return f"data: {json.dumps(whole)}\n\n"
        return ChatCompletionStreamResponse.model_validate(whole)

    server = object.__new__(AnthropicServingMessages)
    return [event async for event in server.message_stream_converter(chat())]


if __name__ == "__main__":
    bodies = json.load(sys.stdin)
    call = {"type": "function", "function": {"name": "look_up", "arguments": '{"q'}}
    try:
        cut = answered({"content": "", "tool_calls": [call]})
    except ValueError as error:
        cut = {"error": type(error).__name__}
    print(json.dumps({
        "asked": [asked(body) for body in bodies],
        "answered": answered({"content": "to"}),
        "cut": cut,
        "aborted": answered({"content": ""}, 0, "abort"),
        "aborted_stream": asyncio.run(aborted_stream()),
    }))  # fmt: skip
