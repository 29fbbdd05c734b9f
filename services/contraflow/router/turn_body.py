"""What follows from a request's body for its turn. Messages are never decoded."""

from __future__ import annotations

import re
from dataclasses import dataclass

from contraflow.web import RequestBody, get_str
from contraflow.web.json_splice import Fields

_LIST_OF_PROMPTS = re.compile(rb"\[\s*[^\s\d\-\]]")
_FORCING_TYPE = re.compile(rb'"type"\s*:\s*"tool"')


@dataclass(frozen=True, slots=True)
class Traits:
    """What a request allows.

    ``claimable``: a retained handle may be claimed for it. ``two_legged``: a prefill engine
    can do the prompt; else the decode engine gets the request alone, without parameters.
    """

    model: str
    claimable: bool
    two_legged: bool


def traits_of(body: RequestBody) -> Traits:
    """Raises BodyError if a field that is looked at has the wrong type."""
    fields = body.fields
    two_legged = not (
        _several_sequences(fields) or _skips_prefix_cache(fields) or _forces_a_tool_use(fields)
    )
    return Traits(
        model=get_str(fields, "model") or "",
        # An echoed prompt may make the engine skip its prefix cache; a handle would be lost.
        claimable=two_legged and not _is_set(fields, "echo", b"false"),
        two_legged=two_legged,
    )


def _is_set(fields: Fields, name: str, *defaults: bytes) -> bool:
    """True unless absent, null or a default. By text: an odd value ("1") counts as set, so
    that only requests that are surely plain are treated as plain."""
    raw = fields.get(name)
    return raw is not None and bytes(raw) not in (b"null", *defaults)


def _several_sequences(fields: Fields) -> bool:
    if _is_set(fields, "n", b"1") or _is_set(fields, "best_of", b"1"):
        return True
    if _is_set(fields, "use_beam_search", b"false"):
        return True
    # A list is one prompt only if it is a list of token ids.
    prompt = fields.get("prompt")
    return prompt is not None and _LIST_OF_PROMPTS.match(memoryview(prompt)) is not None


def _forces_a_tool_use(fields: Fields) -> bool:
    # In the Messages API's form. vLLM decodes the input of such a use even where a prefill leg
    # has cut it after one token, and answers with an error.
    raw = fields.get("tool_choice")
    return raw is not None and _FORCING_TYPE.search(memoryview(raw)) is not None


def _skips_prefix_cache(fields: Fields) -> bool:
    if _is_set(fields, "prompt_logprobs") or _is_set(fields, "prompt_embeds"):
        return True
    # With an echo, log probabilities are those of the prompt too.
    logprobs = _is_set(fields, "logprobs", b"false") or _is_set(fields, "top_logprobs")
    return logprobs and _is_set(fields, "echo", b"false")
