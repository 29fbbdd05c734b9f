"""What a stream's events come to."""

from __future__ import annotations

import pytest

from contraflow.bench.multiturn.endpoint import Reply, TurnError


def test_the_first_token_counts_not_the_first_event() -> None:
    reply = Reply()
    reply.take({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, 1.0)
    reply.take({"choices": [{"delta": {"content": "so"}}]}, 2.0)
    reply.take({"choices": [{"delta": {"content": " be"}}]}, 3.5)
    reply.take({"choices": [{"delta": {}, "finish_reason": "length"}]}, 4.0)
    assert (reply.first, reply.last, reply.text) == (2.0, 3.5, "so be")


@pytest.mark.parametrize(
    "choice",
    [{"delta": {"reasoning_content": "hm"}}, {"delta": {"tool_calls": [{"index": 0}]}},
     {"text": "x"}, {"text": "", "token_ids": [5]}],
)  # fmt: skip
def test_all_that_is_generated_is_a_token(choice: dict[str, object]) -> None:
    reply = Reply()
    reply.take({"choices": [choice]}, 2.0)
    assert reply.first == 2.0


def test_ids_add_up_and_usage_may_come_without_details() -> None:
    reply = Reply()
    assert reply.answer().token_ids is None
    reply.take({"choices": [{"text": "a", "token_ids": [1, 2]}]}, 1.0)
    reply.take({"choices": [{"text": "b", "token_ids": [3]}], "usage": None}, 2.0)
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": None}
    reply.take({"choices": [], "usage": usage}, 3.0)
    assert reply.answer().token_ids == [1, 2, 3]
    assert (reply.prompt_tokens, reply.output_tokens, reply.cached_tokens) == (9, 3, None)


def test_an_error_in_the_stream_is_one() -> None:
    with pytest.raises(TurnError, match="too long"):
        Reply().take({"error": {"message": "too long"}}, 1.0)
