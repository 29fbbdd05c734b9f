"""What Generate is asked for, as the request that a client of the front door would send."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from contraflow.core.errors import InvalidArgument
from contraflow.v1 import router_service_pb2 as pb
from contraflow.web import Request
from contraflow.web.headers import HeaderPair
from contraflow.web.json_splice import Fields, as_raw, join_object, split_object

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = "/v1/messages"


def http_request(
    request: pb.GenerateRequest, headers: list[HeaderPair], default_model: Callable[[], str]
) -> Request:
    """The request to serve; it always asks for a stream. Raises InvalidArgument.

    ``default_model`` is asked where the path, unlike the others, does not do without a model.
    """
    path, fields = _prompt(request)
    if request.model:
        fields["model"] = as_raw(request.model)
    elif path == MESSAGES and "model" not in fields:
        fields["model"] = as_raw(default_model())
    if request.session_id:
        fields["session_id"] = as_raw(request.session_id)
    fields.update({name: as_raw(value) for name, value in _sampling(request, path).items()})
    if request.sampling.HasField("max_tokens"):
        fields.pop("max_completion_tokens", None)  # vLLM lets it win
    fields["stream"] = as_raw(True)
    if path != MESSAGES:
        fields["stream_options"] = as_raw(_with_usage(fields))
    return Request("POST", path, "", headers, body=join_object(fields))


def _prompt(request: pb.GenerateRequest) -> tuple[str, Fields]:
    fields = json_object(request.extra_json, "extra_json") if request.extra_json else {}
    match request.WhichOneof("prompt"):
        case "messages":
            return CHAT, fields | {"messages": as_raw(_messages(request.messages))}
        case "token_ids":
            if not request.token_ids.ids:
                raise InvalidArgument("at least one token id is needed", field="token_ids.ids")
            return COMPLETIONS, fields | {"prompt": as_raw(list(request.token_ids.ids))}
        case "raw":
            path = request.raw.path or CHAT
            if path not in (CHAT, COMPLETIONS, MESSAGES):
                known = f"{CHAT}, {COMPLETIONS} or {MESSAGES}"
                raise InvalidArgument(f"the path must be {known}", field="raw.path")
            return path, fields | json_object(request.raw.json, "raw.json")
    raise InvalidArgument("messages, token_ids or raw is needed", field="prompt")


def _messages(messages: pb.Messages) -> list[Fields]:
    if not messages.messages:
        raise InvalidArgument("at least one message is needed", field="messages.messages")
    found = []
    for index, message in enumerate(messages.messages):
        where = f"messages.messages[{index}]"
        extra: Fields = {}
        if message.extra_json:
            extra = json_object(message.extra_json, f"{where}.extra_json")
        if not message.role and "role" not in extra:
            raise InvalidArgument("a message needs a role", field=f"{where}.role")
        given = {"role": as_raw(message.role), "content": as_raw(message.content)}
        found.append(given | extra)
    return found


def _sampling(request: pb.GenerateRequest, path: str) -> dict[str, Any]:
    sampling = request.sampling
    names = ("max_tokens", "temperature", "top_p", "seed")
    found = {name: getattr(sampling, name) for name in names if sampling.HasField(name)}
    for name in ("temperature", "top_p"):
        if not math.isfinite(found.get(name, 0.0)):
            raise InvalidArgument("not a finite number", field=f"sampling.{name}")
    if path == MESSAGES and "seed" in found:
        raise InvalidArgument("the Messages API takes no seed", field="sampling.seed")
    if sampling.stop:
        found["stop_sequences" if path == MESSAGES else "stop"] = list(sampling.stop)
    return found


def _with_usage(fields: Fields) -> Fields:
    given = bytes(fields.get("stream_options", b"null"))
    options = {} if given == b"null" else json_object(given, "stream_options")
    return options | {"include_usage": as_raw(True)}


def json_object(text: str | bytes, field: str) -> Fields:
    """The members of a JSON object, undecoded. Raises InvalidArgument, which names ``field``."""
    try:
        return split_object(text.encode() if isinstance(text, str) else text)
    except msgspec.ValidationError:
        raise InvalidArgument("not a JSON object", field=field) from None
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"not valid JSON: {error}", field=field) from None
    except RecursionError:
        raise InvalidArgument("nested too deeply", field=field) from None
