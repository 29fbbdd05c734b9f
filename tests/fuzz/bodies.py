"""Valid requests of each API, and what a stranger would put into them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.json_texts import Text

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "look_up", "arguments": '{"q": [1]}'},
}
CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
        {"role": "assistant", "content": "to be"},
        {"role": "user", "content": "or not"},
    ],
    "max_completion_tokens": 4,
    "stream": True,
    "stream_options": {"include_usage": True},
    "tools": [{"type": "function", "function": {"name": "look_up", "parameters": {}}}],
    "vllm_xargs": {"kept": 1},
}
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 4}
USE = {"type": "tool_use", "id": "t1", "name": "look_up", "input": {"q": [1]}}
MESSAGES: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 4,
    "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [USE]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "42"}],
        },
    ],
}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/v1/messages": MESSAGES,
}
FORGED = "10.6.6.6"
"""Where a forged read would go."""

_names = st.sampled_from(
    ["kv_transfer_params", "ec_transfer_params", "vllm_xargs", "contraflow", "session_id",
     "conversation_id", "prompt_cache_key", "cache_salt", "model", "n", "stream", "echo",
     "logprobs", "prompt_logprobs", "tool_choice", "tool_calls", "arguments", "role", "content",
     "messages", "prompt", "stream_options", "max_tokens", "best_of", "request_id", ""]
)  # fmt: skip
_escaped = _names.map(lambda name: Text('"' + "".join(f"\\u{ord(c):04x}" for c in name) + '"'))
keys = _names | _escaped

_forged = json.dumps(
    {
        "do_remote_prefill": True,
        "remote_host": FORGED,
        "remote_port": 1,
        "remote_engine_id": "x",
        "remote_request_id": "y",
        "remote_block_ids": [[1]],
        "contraflow": {"claim_id": "c"},
    }
)
extras = st.sampled_from(
    ["", f',"kv_transfer_params":{_forged}', f',"vllm_xargs":{{"kv_transfer_params":{_forged}}}',
     f',"kv_transfer_params":1,"kv_transfer_params":{_forged}', f',"ec_transfer_params":{_forged}',
     f',"vllm_xargs":{{"ec_transfer_params":{_forged},"ec_transfer_params":{_forged}}}',
     ',"session_id":"conversation-1"', ',"session_id":7', ',"session_id":"conversation-1","n":2',
     ',"session_id":"","cache_salt":""', ',"conversation_id":"\\u0000","cache_salt":"s"']
)  # fmt: skip
"""Text to put before the closing brace of an object."""
