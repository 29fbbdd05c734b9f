"""Runs inside an engine environment: the chunks of a chat stream as vLLM's own types write them.

Argument: the file with the parameters of the last chunk. Prints one payload a line, put
together as ``chat_completion_stream_generator`` does: what is set and null is written, except
on chunks without choices.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from vllm.entrypoints.generate.base.protocol import DeltaMessage, UsageInfo
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionResponseStreamChoice,
    ChatCompletionStreamResponse,
)


def written(choices: list[Any], **fields: Any) -> str:
    chunk = ChatCompletionStreamResponse(
        id="chatcmpl-8f0c1a52e2d94b7a",
        object="chat.completion.chunk",
        created=1767225600,
        choices=choices,
        model="demo",
        **fields,
    )
    text: str = chunk.model_dump_json(exclude_unset=True, exclude_none=not chunk.choices)
    return text


def choice(content: str, **fields: Any) -> ChatCompletionResponseStreamChoice:
    return ChatCompletionResponseStreamChoice(
        index=0, delta=DeltaMessage(content=content), logprobs=None, token_ids=None, **fields
    )


if __name__ == "__main__":
    params = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["decode"]
    first = ChatCompletionResponseStreamChoice(
        index=0, delta=DeltaMessage(role="assistant", content=""), logprobs=None, finish_reason=None
    )
    lines = [written([first], prompt_token_ids=None, prompt_text=None)]
    lines += [
        written([choice(text, finish_reason=None)], kv_transfer_params=None)
        for text in ("The", ' key "kv_transfer_params"', " ends — here")
    ]
    last = choice(".", finish_reason="stop", stop_reason=None, weight_versions=None)
    lines.append(written([last], kv_transfer_params=params))
    usage = UsageInfo(prompt_tokens=40, completion_tokens=5, total_tokens=45)
    lines += [written([], usage=usage), "[DONE]"]
    sys.stdout.write("\n".join(lines) + "\n")
