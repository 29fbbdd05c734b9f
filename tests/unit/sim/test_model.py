"""What the model makes of a state, and how an answer ends."""

from __future__ import annotations

from typing import Any

from tests.support.sim_pair import a_pair, a_prompt, expected

from contraflow.sim.api import SimRequest
from contraflow.sim.model import attend, root, sample
from contraflow.sim.pool import Content
from contraflow.sim.vocab import EOS


def drawn(count: int, output: list[int] | None = None, **fields: Any) -> list[int | None]:
    request = SimRequest("r", [1], 1, **fields)
    return [sample(root(str(i)), request, output or []) for i in range(count)]


def test_tokens_are_printable_and_mostly_lower_case() -> None:
    tokens = [token for token in drawn(5000, ignore_eos=True) if token is not None]
    assert len(tokens) == 5000
    assert all(32 <= token <= 126 for token in tokens)
    assert sum(chr(token).islower() or token == 32 for token in tokens) > 4500


def test_an_answer_ends_by_itself_but_not_before_min_tokens() -> None:
    assert EOS in drawn(2000)
    assert EOS not in drawn(2000, ignore_eos=True)
    assert EOS not in drawn(2000, [97] * 4, min_tokens=5)
    assert EOS in drawn(2000, [97] * 5, min_tokens=5)


def test_stop_tokens_are_not_drawn_before_min_tokens_either() -> None:
    stop = frozenset(range(97, 123))
    assert not stop & set(drawn(2000, [65] * 4, min_tokens=5, stop_token_ids=stop))
    assert stop <= set(drawn(2000, [65] * 5, min_tokens=5, stop_token_ids=stop))
    mask = lambda _: {65, 97}  # noqa: E731
    assert set(drawn(99, [65] * 4, min_tokens=5, stop_token_ids=stop, mask=mask)) == {65}


def test_greedy_takes_no_notice_of_the_seed() -> None:
    assert drawn(50, seed=1) == drawn(50, seed=2)
    assert drawn(50, temperature=1.0, seed=1) == drawn(50, temperature=1.0, seed=1)
    assert drawn(50, temperature=1.0, seed=1) != drawn(50, temperature=1.0, seed=2)
    assert drawn(50, temperature=1.0) == drawn(50, temperature=1.0)


def test_a_mask_says_what_may_follow_and_when_the_answer_ends() -> None:
    assert set(drawn(200, mask=lambda _: {65, 66})) == {65, 66}
    assert set(drawn(20, mask=lambda _: set())) == {None}
    assert EOS not in drawn(200, min_tokens=1, mask=lambda _: {65, EOS})
    assert set(drawn(200, mask=lambda _: {65, EOS})) == {65, EOS}


def test_the_state_tells_apart_whatever_a_block_holds() -> None:
    contents = [
        Content(b"s" * 16, [1, 2, 3]),
        Content(b"t" * 16, [1, 2, 3]),
        Content(b"s" * 16, [1, 2, 4]),
        Content(b"s" * 16, [1, 2]),
        Content(),
    ]
    assert len({attend(root("m"), content, 3) for content in contents}) == len(contents)
    assert attend(root("m"), contents[0], 2) == attend(root("m"), contents[3], 2)


def test_what_nobody_wrote_is_not_what_was_meant() -> None:
    content = Content(b"s", [1, 2, 3, 4])
    content.write(2, [9])
    assert content.tokens == [1, 2, 9]
    content.write(5, [7])
    assert content.tokens == [1, 2, 9, -1, -1, 7]


async def test_stop_tokens_end_an_answer_and_are_part_of_it() -> None:
    plain = await expected(a_prompt(20))
    wanted = plain[7]
    async with a_pair() as pair:
        answer = await pair.ask(pair.decode, a_prompt(20), stop_token_ids=frozenset({wanted}))
        assert answer.tokens == plain[: plain.index(wanted) + 1]
        assert answer.last.finish_reason == "stop"
        later = await pair.ask(
            pair.decode,
            a_prompt(20),
            stop_token_ids=frozenset({wanted}),
            min_tokens=plain.index(wanted) + 2,
        )
        assert len(later.tokens) > plain.index(wanted) + 1


async def test_an_answer_that_ends_by_itself_says_stop() -> None:
    async with a_pair() as pair:
        answers = [
            await pair.ask(pair.decode, a_prompt(20, i), max_tokens=2000, ignore_eos=False)
            for i in range(3)
        ]
        assert {answer.last.finish_reason for answer in answers} == {"stop"}
        assert {answer.tokens[-1] for answer in answers} == {EOS}
        masked = await pair.ask(pair.decode, a_prompt(20), mask=lambda made: {65} - set(made))
        assert (masked.tokens, masked.last.finish_reason) == ([65], "stop")


async def test_another_model_says_something_else() -> None:
    async with a_pair(model="other") as pair:
        assert (await pair.turn(a_prompt(40))).tokens != await expected(a_prompt(40))
