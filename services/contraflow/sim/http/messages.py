"""``POST /v1/messages``: the Anthropic Messages API."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from contraflow.sim.http import sse
from contraflow.sim.http.bodies import Block, Json, MessagesBody, Sampling, Turn, parse
from contraflow.sim.http.chat import chat_prompt
from contraflow.sim.http.choice import Choice, Generation, Piece
from contraflow.sim.http.reply import Reply
from contraflow.sim.http.serving import Serving
from contraflow.sim.http.shapes import usage
from contraflow.sim.http.tool_calls import ToolCall
from contraflow.web import ApiError, Request, Responder

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn"}


async def messages(serving: Serving, request: Request, responder: Responder) -> None:
    """Answer with a message, or with its events if the body asks for a stream."""
    body = parse(request.body, MessagesBody)
    model = serving.name(body.model)
    engine = serving.engine(request)
    prompt = chat_prompt(to_openai(body), [_tool(tool) for tool in body.tools or ()])
    (choice,) = serving.choices(request, _sampling(body), [prompt], "chatcmpl")
    generation = Generation(engine, [choice])
    with_tools = bool(body.tools) and (body.tool_choice or {}).get("type") != "none"
    reply = Reply(choice, with_tools=with_tools)
    head: Json = {"id": f"chatcmpl-{request.id}", "type": "message", "role": "assistant"}
    head |= {"model": model}
    if not body.stream:

        async def listen(choice: Choice, piece: Piece) -> None:
            reply.take(piece)

        await generation.run(listen)
        responder.send_json(200, _whole(head, reply))
        return
    stream = _Stream(responder, head, reply)

    async def run() -> None:
        await generation.run(stream.emit)
        await stream.end()

    await sse.stream(responder, run(), last=sse.event({"type": "message_stop"}, "message_stop"))


def to_openai(body: MessagesBody) -> list[Json]:
    """The conversation as messages of the OpenAI API. ApiError for a block that is unknown."""
    found: list[Json] = []
    if body.system:
        system = body.system
        text = system if isinstance(system, str) else "".join(_texts(system))
        found.append({"role": "system", "content": text})
    for turn in body.messages:
        found += _turn(turn)
    return found


def _turn(turn: Turn) -> list[Json]:
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    by_type: dict[str, list[Block]] = {}
    for block in turn.content:
        by_type.setdefault(block.type, []).append(block)
    results, uses = by_type.pop("tool_result", []), by_type.pop("tool_use", [])
    message: Json = {"role": turn.role, "content": "".join(_texts(by_type.pop("text", [])))}
    for thoughts in ("thinking", "redacted_thinking"):
        by_type.pop(thoughts, None)  # the template has no place for them
    if by_type:
        raise ApiError(400, f"Content of type {min(by_type)} is not supported.", param="messages")
    if uses:
        message["tool_calls"] = [
            {"id": use.id, "function": {"name": use.name, "arguments": use.input or {}}}
            for use in uses
        ]
    answers = [
        {"role": "tool", "tool_call_id": block.tool_use_id, "content": block.content}
        for block in results
    ]
    return answers if answers and not message["content"] else [*answers, message]


def _texts(blocks: Iterable[Block]) -> list[str]:
    return [block.text for block in blocks]


def _tool(tool: Json) -> Json:
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("input_schema"),
    }
    return {"type": "function", "function": function}


def _sampling(body: MessagesBody) -> Sampling:
    return Sampling(
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
        temperature=body.temperature,
        cache_salt=body.cache_salt,
        vllm_xargs=body.vllm_xargs,
        kv_transfer_params=body.kv_transfer_params,
    )


def _usage(choices: Sequence[Choice]) -> Json:
    counts = usage(choices)
    cached = counts["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": counts["prompt_tokens"] - cached,
        "output_tokens": counts["completion_tokens"],
        "cache_read_input_tokens": cached,
    }


def _stop(reply: Reply) -> Json:
    reason = _STOP_REASONS.get(reply.finish_reason or "")
    sequence = reply.choice.stop_reason if isinstance(reply.choice.stop_reason, str) else None
    if sequence is not None and reason == "end_turn":
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": sequence}


def _whole(head: Json, reply: Reply) -> Json:
    content: list[Json] = []
    if reply.content or not reply.calls:
        content.append({"type": "text", "text": reply.content})
    for call in reply.calls:
        content.append(_tool_use(call, json.loads(call.arguments)))
    answer = {**head, "content": content, **_stop(reply), "usage": _usage([reply.choice])}
    params = reply.choice.kv_transfer_params
    return answer if params is None else {**answer, "kv_transfer_params": params}


def _tool_use(call: ToolCall, value: Any) -> Json:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": value}


class _Stream:
    """The events of a stream. vLLM's carry no transfer parameters in any version."""

    def __init__(self, responder: Responder, head: Json, reply: Reply) -> None:
        self._responder = responder
        self._head = head
        self._reply = reply
        self._begun = False
        self._index = 0
        self._in_text = False

    async def emit(self, choice: Choice, piece: Piece) -> None:
        if not self._begun:
            self._begun = True
            prompt = len(choice.request.prompt_token_ids)
            start: Json = {"content": [], "stop_reason": None, "stop_sequence": None}
            counts = {"input_tokens": prompt, "output_tokens": 0}
            await self._send("message_start", message={**self._head, **start, "usage": counts})
        content, calls = self._reply.take(piece)
        if content:
            await self._text(content)
        for call in calls:
            await self._end_text()
            await self._block(_tool_use(call, {}))
            delta = {"type": "input_json_delta", "partial_json": call.arguments}
            await self._send("content_block_delta", index=self._index, delta=delta)
            await self._end_block()

    async def end(self) -> None:
        await self._end_text()
        usage = _usage([self._reply.choice])
        await self._send("message_delta", delta=_stop(self._reply), usage=usage)

    async def _text(self, text: str) -> None:
        if not self._in_text:
            self._in_text = True
            await self._block({"type": "text", "text": ""})
        delta = {"type": "text_delta", "text": text}
        await self._send("content_block_delta", index=self._index, delta=delta)

    async def _end_text(self) -> None:
        if self._in_text:
            self._in_text = False
            await self._end_block()

    async def _block(self, block: Json) -> None:
        await self._send("content_block_start", index=self._index, content_block=block)

    async def _end_block(self) -> None:
        await self._send("content_block_stop", index=self._index)
        self._index += 1

    async def _send(self, name: str, **fields: Any) -> None:
        await self._responder.write(sse.event({"type": name, **fields}, name))
