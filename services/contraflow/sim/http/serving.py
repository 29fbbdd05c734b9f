"""From the body of a request to the choices that an engine generates."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from contraflow.sim.api import Engine, SimRequest, TokenMask
from contraflow.sim.http.bodies import Sampling
from contraflow.sim.http.choice import Choice
from contraflow.sim.regex_mask import choice_mask, regex_mask
from contraflow.sim.vocab import VOCAB_SIZE
from contraflow.web import ApiError, Request

MAX_CHOICES = 128
DEFAULT_TEMPERATURE = 1.0


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """What the server says of itself. ``names``: how requests may call the model;
    ``vllm_version`` as ``0.32.0``."""

    names: tuple[str, ...]
    max_model_len: int
    vllm_version: str = "0.32.0"

    @property
    def params_in_streams(self) -> bool:
        """From 0.33 on streams carry transfer parameters."""
        major, minor = self.vllm_version.split(".")[:2]
        return (int(major), int(minor)) >= (0, 33)


class Serving:
    """A model on engines, one for each data-parallel rank."""

    def __init__(self, model: ServedModel, engines: Sequence[Engine]) -> None:
        self.model = model
        self.engines = engines
        self._turns = count()

    def engine(self, request: Request) -> Engine:
        """That of ``X-data-parallel-rank``, or the next in turn."""
        header = request.header(b"x-data-parallel-rank")
        if header is None:
            return self.engines[next(self._turns) % len(self.engines)]
        if not header.isdigit() or int(header) >= len(self.engines):
            raise ApiError(
                400,
                f"X-data-parallel-rank must be a number below {len(self.engines)}.",
                param="data_parallel_rank",
            )
        return self.engines[int(header)]

    def name(self, asked: str | None) -> str:
        """What the answer calls the model. ApiError if it is not served."""
        if asked and asked not in self.model.names:
            message = f"The model `{asked}` does not exist."
            raise ApiError(404, message, param="model")
        return asked or self.model.names[0]

    def choices(
        self, request: Request, body: Sampling, prompts: Sequence[Sequence[int]], prefix: str
    ) -> list[Choice]:
        """The choices of an answer to ``prompts``, token ids.

        ``prefix`` is ``cmpl`` or ``chatcmpl``. Raises ApiError for what can not be generated.
        """
        count = _in_range("n", 1 if body.n is None else body.n, 1, MAX_CHOICES)
        stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
        if "" in stop:
            raise ApiError(400, "stop must not hold an empty string.", param="stop")
        choices: list[Choice] = []
        for index, prompt in enumerate(prompts):
            name = f"{prefix}-{request.id}" + (f"-{index}" if prefix == "cmpl" else "")
            for child in range(count):
                sequence = self._sequence(request, body, list(prompt))
                # Unique even if clients repeat an id; vLLM appends eight digits as well.
                unique = f"{name}-{secrets.token_hex(4)}"
                sequence.request_id = f"{child}_{unique}" if count > 1 else unique
                if body.seed is not None:
                    sequence.seed = body.seed + child
                choices.append(
                    Choice(
                        sequence,
                        index=len(choices),
                        prompt=index,
                        stop=stop,
                        include_stop=body.include_stop_str_in_output,
                    )
                )
        return choices

    def _sequence(self, request: Request, body: Sampling, prompt: list[int]) -> SimRequest:
        max_tokens = self._max_tokens(body, prompt)
        return SimRequest(
            request_id="",
            prompt_token_ids=prompt,
            max_tokens=max_tokens,
            min_tokens=_in_range("min_tokens", body.min_tokens or 0, 0, max_tokens),
            stop_token_ids=frozenset(body.stop_token_ids or ()),
            ignore_eos=bool(body.ignore_eos),
            temperature=_temperature(body.temperature),
            mask=_mask(body),
            kv_transfer_params=body.kv_transfer_params,
            cache_salt=body.cache_salt or "",
            session_id=_session_id(request, body),
            skip_prefix_cache=body.prompt_logprobs is not None,
        )

    def _max_tokens(self, body: Sampling, prompt: list[int]) -> int:
        limit = self.model.max_model_len
        if not prompt:
            raise ApiError(400, "The prompt must not be empty.", param="prompt")
        if min(prompt) < 0 or max(prompt) >= VOCAB_SIZE:
            message = f"Token ids of a prompt must be below {VOCAB_SIZE}."
            raise ApiError(400, message, param="prompt")
        asked = body.max_completion_tokens
        if asked is None:
            asked = body.max_tokens
        if asked is not None and asked < 1:
            raise ApiError(400, "max_tokens must be at least 1.", param="max_tokens")
        if len(prompt) + (asked or 1) > limit:
            raise ApiError(
                400,
                f"This model's maximum context length is {limit} tokens. However, you asked for "
                f"{asked or 1} output tokens behind {len(prompt)} prompt tokens. Shorten the "
                "prompt or ask for fewer tokens.",
                param="input_tokens",
            )
        return limit - len(prompt) if asked is None else asked


def _mask(body: Sampling) -> TokenMask | None:
    kind = (body.response_format or {}).get("type", "text")
    asked = {key: value for key, value in (body.structured_outputs or {}).items() if value}
    regex, choice = asked.pop("regex", None), asked.pop("choice", None)
    if kind != "text" or asked:
        raise ApiError(
            400, "Of structured outputs only regex and choice can be generated here.",
            param="structured_outputs",
        )  # fmt: skip
    regex, choice = regex or body.guided_regex, choice or body.guided_choice
    try:
        if isinstance(regex, str) and not choice:
            return regex_mask(regex)
        if isinstance(choice, list) and not regex and all(isinstance(c, str) for c in choice):
            return choice_mask(choice)
    except ValueError as error:
        raise ApiError(400, f"{error}.", param="structured_outputs") from None
    if regex or choice:
        message = "Structured outputs need either a regex or a list of texts to choose from."
        raise ApiError(400, message, param="structured_outputs")
    return None


def _session_id(request: Request, body: Sampling) -> str:
    """The body's, else the header's, else that of ``vllm_xargs``."""
    header = request.header(b"x-session-id")
    extra: Any = (body.vllm_xargs or {}).get("session_id")
    found = body.session_id or (header.decode("latin-1") if header else "")
    return found or (extra if isinstance(extra, str) else "")


def _temperature(value: float | None) -> float:
    if value is None:
        return DEFAULT_TEMPERATURE
    if not value >= 0:
        raise ApiError(400, "temperature must not be negative.", param="temperature")
    return value


def _in_range(name: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise ApiError(400, f"{name} must be from {least} to {most}.", param=name)
    return value
