"""Runs inside an engine environment: what vLLM's Messages API makes of the two legs of a turn.

Prints one JSON object: what the model's handler would be asked for on either leg, what the
response to a prefill leg holds, and what becomes of a forced tool use that was cut.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

if importlib.util.find_spec("orjson") is None:
    # A dependency that 0.33 has beyond those of the environment; the converter does without.
    sys.modules["orjson"] = json

from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse

PARAMS = {"do_remote_decode": True, "do_remote_prefill": False, "contraflow": {"turn_id": "t"}}
THINKING = {"thinking": {"type": "enabled", "budget_tokens": 2048}}


def asked(body: dict[str, Any]) -> dict[str, Any]:
    request = AnthropicMessagesRequest.model_validate(body)
    chat = AnthropicServingMessages.to_chat_completion_request(request)
    found: dict[str, Any] = json.loads(chat.model_dump_json(exclude_unset=True))
    return found


def answered(message: dict[str, Any]) -> dict[str, Any]:
    response = ChatCompletionResponse.model_validate({
        "model": "tiny",
        "choices": [{"index": 0, "message": {"role": "assistant", **message}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
        "kv_transfer_params": {"remote_engine_id": "p"},
    })  # fmt: skip
    server = object.__new__(AnthropicServingMessages)
    converted = server.messages_full_converter(response)
    found: dict[str, Any] = converted.model_dump(exclude_none=True)
    return found


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
    }))  # fmt: skip
