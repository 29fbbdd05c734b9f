"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from contraflow.sim.http import sse
from contraflow.sim.http.bodies import ChatBody, Json, parse
from contraflow.sim.http.choice import Choice, Generation, Piece
from contraflow.sim.http.reply import Reply
from contraflow.sim.http.serving import Serving
from contraflow.sim.http.shapes import chat_logprobs, prompt_logprobs, usage
from contraflow.sim.http.tool_calls import ToolCall
from contraflow.sim.text import encode, render_chat
from contraflow.web import ApiError, Request, Responder


async def chat(serving: Serving, request: Request, responder: Responder) -> None:
    """Answer with a JSON object, or with a stream if the body asks for one."""
    body = parse(request.body, ChatBody)
    model = serving.name(body.model)
    engine = serving.engine(request)
    prompt = chat_prompt(body.messages, body.tools or ())
    choices = serving.choices(request, body, [prompt], "chatcmpl")
    generation = Generation(engine, choices)
    with_tools = bool(body.tools) and body.tool_choice != "none"
    replies = [Reply(choice, with_tools=with_tools) for choice in choices]
    head = {
        "id": f"chatcmpl-{request.id}",
        "object": "chat.completion.chunk" if body.stream else "chat.completion",
        "created": int(time.time()),
        "model": model,
    }
    if not body.stream:

        async def listen(choice: Choice, piece: Piece) -> None:
            replies[choice.index].take(piece)

        await generation.run(listen)
        responder.send_json(200, _whole(head, body, replies))
        return
    stream = _Stream(serving, responder, body, head, replies)

    async def run() -> None:
        await generation.run(stream.emit)
        if body.include_usage:
            await responder.write(sse.event({**head, "choices": [], "usage": usage(choices)}))

    await sse.stream(responder, run())


def chat_prompt(
    messages: Sequence[Json], tools: Sequence[Any], *, add_generation_prompt: bool = True
) -> list[int]:
    """Token ids of a conversation. Raises ApiError for what is no message."""
    if not messages:
        raise ApiError(400, "messages must not be empty.", param="messages")
    try:
        return encode(render_chat(messages, tools, add_generation_prompt=add_generation_prompt))
    except ValueError as error:
        raise ApiError(400, f"{error}.", param="messages") from None


class _Stream:
    """The chunks of a stream."""

    def __init__(
        self,
        serving: Serving,
        responder: Responder,
        body: ChatBody,
        head: Json,
        replies: Sequence[Reply],
    ) -> None:
        self._responder = responder
        self._body = body
        self._head = head
        self._replies = replies
        self._with_params = serving.model.params_in_streams
        self._begun = False

    async def emit(self, choice: Choice, piece: Piece) -> None:
        if not self._begun:
            self._begun = True
            for reply in self._replies:
                await self._responder.write(sse.event(self._first(reply)))
        reply = self._replies[choice.index]
        content, calls = reply.take(piece)
        said = content or calls or piece.finish_reason is not None
        if said or self._body.return_token_ids:
            await self._responder.write(sse.event(self._chunk(reply, piece, content, calls)))

    def _first(self, reply: Reply) -> Json:
        choice = {
            "index": reply.choice.index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        prompt = reply.choice.request.prompt_token_ids
        return {
            **self._head,
            "choices": [choice],
            "prompt_token_ids": prompt if self._body.return_token_ids else None,
            "prompt_text": None,
        }

    def _chunk(self, reply: Reply, piece: Piece, content: str, calls: list[ToolCall]) -> Json:
        delta: Json = {}
        if content:
            delta["content"] = content
        if calls:
            first = len(reply.calls) - len(calls)
            delta["tool_calls"] = [
                call.openai(index=index) for index, call in enumerate(calls, first)
            ]
        choice: Json = {
            "index": reply.choice.index,
            "delta": delta,
            "logprobs": chat_logprobs(piece.token_ids) if self._body.logprobs else None,
            "finish_reason": reply.finish_reason,
            "token_ids": piece.token_ids if self._body.return_token_ids else None,
        }
        if piece.finish_reason is not None:
            choice["stop_reason"] = reply.choice.stop_reason
        chunk = {**self._head, "choices": [choice]}
        if self._with_params:
            chunk["kv_transfer_params"] = reply.choice.kv_transfer_params
        return chunk


def _whole(head: Json, body: ChatBody, replies: Sequence[Reply]) -> Json:
    choices = [reply.choice for reply in replies]
    prompt = choices[0].request.prompt_token_ids
    return {
        **head,
        "choices": [_choice(body, reply) for reply in replies],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": usage(choices),
        "prompt_logprobs": None if body.prompt_logprobs is None else prompt_logprobs(prompt),
        "prompt_token_ids": prompt if body.return_token_ids else None,
        "prompt_text": None,
        "kv_transfer_params": choices[0].kv_transfer_params,
    }


def _choice(body: ChatBody, reply: Reply) -> Json:
    choice = reply.choice
    message: Json = {"role": "assistant", "content": reply.content or None, "refusal": None}
    if reply.calls:
        message["tool_calls"] = [call.openai() for call in reply.calls]
    else:
        message["content"] = reply.content
    return {
        "index": choice.index,
        "message": message,
        "logprobs": chat_logprobs(choice.token_ids) if body.logprobs else None,
        "finish_reason": reply.finish_reason,
        "stop_reason": choice.stop_reason,
        "token_ids": choice.token_ids if body.return_token_ids else None,
    }
