"""Bodies of requests. Fields that are not named here are accepted and have no effect."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from contraflow.web import ApiError

Json = dict[str, Any]


class StreamOptions(msgspec.Struct):
    """``stream_options``."""

    include_usage: bool = False


class Sampling(msgspec.Struct, kw_only=True):
    """What ``/v1/completions`` and ``/v1/chat/completions`` share."""

    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = 0
    n: int | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool | None = False
    temperature: float | None = None
    seed: int | None = None
    return_token_ids: bool | None = None
    prompt_logprobs: int | None = None
    structured_outputs: Json | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    response_format: Json | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    vllm_xargs: Json | None = None
    kv_transfer_params: Json | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionBody(Sampling, kw_only=True):
    """``/v1/completions``. ``prompt``: a text, a list of token ids, or a list of such."""

    prompt: str | list[Any]
    max_tokens: int | None = 16
    echo: bool | None = False
    logprobs: int | None = None


class ChatBody(Sampling, kw_only=True):
    """``/v1/chat/completions``."""

    messages: list[Json]
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    logprobs: bool | None = False


class Block(msgspec.Struct):
    """A content block of the Messages API."""

    type: str
    text: str = ""
    id: str = ""
    name: str = ""
    input: Json | None = None
    tool_use_id: str = ""
    content: str | list[Json] | None = None


class Turn(msgspec.Struct):
    """A message of the Messages API."""

    role: str
    content: str | list[Block]


class MessagesBody(msgspec.Struct, kw_only=True):
    """``/v1/messages``."""

    model: str
    messages: list[Turn]
    max_tokens: int
    system: str | list[Block] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = False
    temperature: float | None = None
    tools: list[Json] | None = None
    tool_choice: Json | None = None
    cache_salt: str | None = None
    vllm_xargs: Json | None = None
    kv_transfer_params: Json | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """``/tokenize``: of a prompt, or of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Json] | None = None
    tools: list[Json] | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """``/detokenize``."""

    model: str | None = None
    tokens: list[int]


BodyT = TypeVar("BodyT", bound=msgspec.Struct)


def parse(data: bytes, kind: type[BodyT]) -> BodyT:
    """Raises ApiError that names the field at fault, not its value."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"The request body is not valid: {error}.") from None
