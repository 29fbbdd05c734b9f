"""``POST /v1/completions``."""

from __future__ import annotations

import time
from typing import Any

from contraflow.sim.http import sse
from contraflow.sim.http.bodies import CompletionBody, Json, parse
from contraflow.sim.http.choice import Choice, Generation, Piece
from contraflow.sim.http.serving import Serving
from contraflow.sim.http.shapes import completion_logprobs, prompt_logprobs, usage
from contraflow.sim.text import decode, encode
from contraflow.web import ApiError, Request, Responder


async def completions(serving: Serving, request: Request, responder: Responder) -> None:
    """Answer with a JSON object, or with a stream if the body asks for one."""
    body = parse(request.body, CompletionBody)
    model = serving.name(body.model)
    engine = serving.engine(request)
    choices = serving.choices(request, body, _prompts(body.prompt), "cmpl")
    generation = Generation(engine, choices)
    head: Json = {
        "id": f"cmpl-{request.id}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
    }
    if not body.stream:
        await generation.run(_ignore)
        responder.send_json(200, _whole(head, body, choices))
        return
    with_params = serving.model.params_in_streams

    async def emit(choice: Choice, piece: Piece) -> None:
        chunk = {**head, "choices": [_delta(body, choice, piece)]}
        if with_params:
            chunk["kv_transfer_params"] = choice.kv_transfer_params
        await responder.write(sse.event(chunk))

    async def run() -> None:
        await generation.run(emit)
        if body.include_usage:
            await responder.write(sse.event({**head, "choices": [], "usage": usage(choices)}))

    await sse.stream(responder, run())


async def _ignore(choice: Choice, piece: Piece) -> None:
    """What is not streamed is read from the choice at its end."""


def _prompts(prompt: str | list[Any]) -> list[list[int]]:
    if isinstance(prompt, str):
        return [encode(prompt)]
    several = prompt if prompt and not isinstance(prompt[0], int) else [prompt]
    found = [encode(one) if isinstance(one, str) else one for one in several]
    for one in found:
        if not (isinstance(one, list) and set(map(type, one)) <= {int}):
            raise ApiError(
                400, "prompt must be a text, a list of token ids, or a list of such.",
                param="prompt",
            )  # fmt: skip
    return found


def _delta(body: CompletionBody, choice: Choice, piece: Piece) -> Json:
    first = len(choice.token_ids) == len(piece.token_ids)
    prompt = choice.request.prompt_token_ids
    text = decode(prompt) + piece.text if first and body.echo else piece.text
    return {
        "index": choice.index,
        "text": text,
        "logprobs": _logprobs(body, piece.token_ids, len(choice.text) - len(piece.text)),
        "finish_reason": piece.finish_reason,
        "stop_reason": choice.stop_reason,
        "prompt_token_ids": prompt if first and body.return_token_ids else None,
        "token_ids": piece.token_ids if body.return_token_ids else None,
    }


def _logprobs(body: CompletionBody, ids: list[int], offset: int) -> Json | None:
    return None if body.logprobs is None else completion_logprobs(ids, offset)


def _whole(head: Json, body: CompletionBody, choices: list[Choice]) -> Json:
    return {
        **head,
        "choices": [_choice(body, choice) for choice in choices],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": usage(choices),
        "kv_transfer_params": choices[0].kv_transfer_params,
    }


def _choice(body: CompletionBody, choice: Choice) -> Json:
    prompt = choice.request.prompt_token_ids
    return {
        "index": choice.index,
        "text": decode(prompt) + choice.text if body.echo else choice.text,
        "logprobs": _logprobs(body, choice.token_ids, 0),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "token_ids": choice.token_ids if body.return_token_ids else None,
        "prompt_logprobs": None if body.prompt_logprobs is None else prompt_logprobs(prompt),
        "prompt_token_ids": prompt if body.return_token_ids else None,
    }
