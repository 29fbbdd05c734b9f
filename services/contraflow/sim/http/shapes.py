"""Parts of OpenAI answers that several routes share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from contraflow.sim.http.choice import Choice
from contraflow.sim.text import decode

LOGPROB = -0.1
"""Stands for every log probability: the engine has none."""
Json = dict[str, Any]


def usage(choices: Iterable[Choice]) -> Json:
    """Token counts of an answer; the prompt that several choices share counts once."""
    prompts: dict[int, int] = {}
    cached: dict[int, int] = {}
    completion = 0
    for choice in choices:
        prompts[choice.prompt] = len(choice.request.prompt_token_ids)
        cached[choice.prompt] = max(cached.get(choice.prompt, 0), choice.num_cached_tokens)
        completion += len(choice.token_ids)
    prompt = sum(prompts.values())
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": sum(cached.values())},
    }


def prompt_logprobs(ids: Sequence[int]) -> list[Json | None]:
    """One entry for each prompt token, the first without value."""
    return [None, *({str(token): _entry(token) for token in [token]} for token in ids[1:])]


def completion_logprobs(ids: Sequence[int], offset: int) -> Json:
    """Of ``/v1/completions``. ``offset``: characters before the first token."""
    tokens = [decode([token]) for token in ids]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "text_offset": offsets,
        "token_logprobs": [LOGPROB] * len(tokens),
        "tokens": tokens,
        "top_logprobs": [{token: LOGPROB} for token in tokens],
    }


def chat_logprobs(ids: Sequence[int]) -> Json:
    """Of ``/v1/chat/completions``."""
    content = []
    for token in map(decode, ([token] for token in ids)):
        entry = {"token": token, "logprob": LOGPROB, "bytes": list(token.encode())}
        content.append({**entry, "top_logprobs": []})
    return {"content": content}


def _entry(token: int) -> Json:
    return {"logprob": LOGPROB, "rank": 1, "decoded_token": decode([token])}
