"""Fits of durations: what they learn from, what they do not, and how sure they are."""

from __future__ import annotations

import math
import random

import pytest

from contraflow.core.fit import Expected, Fit

PRIOR = (0.02, 1e-9)  # seconds, seconds a byte
SIZES = (1e6, 4e6, 1.6e7, 6.4e7, 2.56e8)


def took(size: float, setup: float = 0.02, rate: float = 1e-9) -> float:
    return setup + size * rate


def taught(times: float, count: int, noise: float = 0.0) -> Fit:
    fit, chance = Fit(PRIOR), random.Random(1)
    for number in range(count):
        size = SIZES[number % len(SIZES)]
        fit.observe((1.0, size), took(size) * times * math.exp(chance.gauss(0, noise)), number)
    return fit


def seconds(fit: Fit, size: float = 6.4e7, now: float = 100.0) -> float:
    return fit.expect((1.0, size), now).seconds


def test_the_prior_is_what_is_expected_first_and_it_may_be_ten_times_off() -> None:
    expected = Fit(PRIOR).expect((1.0, 1e8), 0.0)
    assert expected.seconds == pytest.approx(0.12)
    assert expected.low < 0.012


@pytest.mark.parametrize("times", [0.1, 0.5, 2, 10])
def test_a_prior_that_is_off_is_corrected(times: float) -> None:
    fit = taught(times, 15, noise=0.05)
    for size in SIZES:
        assert seconds(fit, size) == pytest.approx(took(size) * times, rel=0.1)


def test_each_coefficient_is_found() -> None:
    fit = Fit(PRIOR)
    for number in range(30):
        size = SIZES[number % len(SIZES)]
        fit.observe((1.0, size), took(size, setup=0.1, rate=4e-10), number)
    assert seconds(fit, 0.0) == pytest.approx(0.1, rel=0.05)
    assert seconds(fit, 1e9) - seconds(fit, 0.0) == pytest.approx(0.4, rel=0.05)


@pytest.mark.parametrize("before", [0, 1, 2, 10, 40])
def test_a_single_outlier_moves_nothing(before: int) -> None:
    fit, untouched = taught(1.3, before), taught(1.3, before)
    fit.observe((1.0, 6.4e7), took(6.4e7) * 100, before)
    assert seconds(fit) == pytest.approx(seconds(untouched), rel=0.02)


def test_what_is_quicker_than_was_thought_is_believed_at_once() -> None:
    fit = Fit(PRIOR)
    fit.observe((1.0, 6.4e7), took(6.4e7) / 10, 0.0)
    assert seconds(fit) == pytest.approx(took(6.4e7) / 10, rel=0.2)


@pytest.mark.parametrize("times", [0.2, 5])
def test_changed_conditions_are_followed(times: float) -> None:
    fit = taught(1, 60)
    for number in range(60, 90):
        size = SIZES[number % len(SIZES)]
        fit.observe((1.0, size), took(size) * times, number)
    assert seconds(fit) == pytest.approx(took(6.4e7) * times, rel=0.1)


def test_what_always_was_far_slower_than_thought_is_believed() -> None:
    assert seconds(taught(30, 12)) == pytest.approx(30 * took(6.4e7), rel=0.1)


@pytest.mark.parametrize("times", [30, 300])
def test_what_becomes_far_slower_is_followed(times: float) -> None:
    fit = taught(1, 60)
    for number in range(60, 72):
        fit.observe((1.0, 6.4e7), times * took(6.4e7), number)
    assert seconds(fit) == pytest.approx(times * took(6.4e7), rel=0.1)


def test_two_that_are_held_up_after_one_that_is_a_little_late_are_no_change() -> None:
    fit = taught(1, 60)
    for number, times in enumerate((1.08, 1.08, 1.08, 1.08, 1.15, 100, 100), 60):
        fit.observe((1.0, 6.4e7), took(6.4e7) * times, number)
    assert seconds(fit) < 1.5 * took(6.4e7)


def test_three_that_are_held_up_in_succession_are_overcome_by_three_that_are_not() -> None:
    fit = taught(1, 60)
    for number in range(60, 63):
        fit.observe((1.0, 6.4e7), took(6.4e7) * 100, number)
    assert seconds(fit) < 15 * took(6.4e7)
    for number in range(63, 66):
        fit.observe((1.0, 6.4e7), took(6.4e7), number)
    assert seconds(fit) < 2 * took(6.4e7)


def test_what_each_token_costs_after_others_is_found_though_all_have_one_size() -> None:
    fit = Fit((0.02, 1e-4, 1e-9))
    for number in range(40):
        pairs = 150.0 * 1000 * 2 ** (number % 5)
        fit.observe((1.0, 150.0, pairs), 0.035 + 1e-8 * pairs, number)
    after_long = fit.expect((1.0, 150.0, 150.0 * 16_000), 40).seconds
    after_none = fit.expect((1.0, 150.0, 150.0 * 75), 40).seconds
    assert after_long == pytest.approx(0.059, rel=0.03)
    assert after_none == pytest.approx(0.035, rel=0.03)


def test_a_fast_one_where_little_is_known_is_not_taken_for_a_change_of_all() -> None:
    fit = Fit(PRIOR)
    for number, size in enumerate((2.56e8, 2.56e8, 2.56e8)):
        fit.observe((1.0, size), took(size), number)
    fit.observe((1.0, 1e5), took(1e5) / 8, 3)
    assert seconds(fit, 2.56e8) == pytest.approx(took(2.56e8), rel=0.2)


def test_becoming_quick_is_noticed_sooner_than_becoming_slow() -> None:
    quick, slow = taught(5, 60), taught(1, 60)
    for number in range(60, 63):
        quick.observe((1.0, 6.4e7), took(6.4e7), number)
        assert seconds(slow) < 1.1 * took(6.4e7)
        slow.observe((1.0, 6.4e7), 5 * took(6.4e7), number)
        if number == 60:
            assert seconds(quick) < 3 * took(6.4e7)
    assert seconds(slow) > 3 * took(6.4e7)


def test_what_lasts_is_known_the_better_the_longer_it_lasts() -> None:
    few, many = taught(1.3, 40, noise=0.15), taught(1.3, 400, noise=0.15)

    def off(fit: Fit) -> float:
        return sum(abs(seconds(fit, size) / (1.3 * took(size)) - 1) for size in SIZES)

    assert off(many) < off(few)
    assert off(many) < 0.1


def test_a_small_change_is_noticed() -> None:
    fit, chance = taught(1, 200, noise=0.1), random.Random(2)
    for number in range(200, 215):
        size = SIZES[number % len(SIZES)]
        fit.observe((1.0, size), took(size) * 1.5 * math.exp(chance.gauss(0, 0.1)), number)
    assert seconds(fit) == pytest.approx(1.5 * took(6.4e7), rel=0.1)


def test_what_is_done_rarely_is_not_forgotten_over_what_is_done_often() -> None:
    fit = Fit(PRIOR)
    for number in range(3):
        fit.observe((1.0, 1e9), took(1e9, rate=3e-9), number)
    for number in range(3, 60):
        fit.observe((1.0, 1e6), took(1e6, rate=3e-9), number)
    assert seconds(fit, 1e9) == pytest.approx(took(1e9, rate=3e-9), rel=0.15)


def test_the_error_shrinks_with_observations_and_grows_without() -> None:
    errors = [taught(1, count, 0.1).expect((1.0, 6.4e7), count).error for count in (0, 5, 20, 80)]
    assert errors == sorted(errors, reverse=True)
    fit = taught(1, 80, 0.1)
    assert fit.expect((1.0, 6.4e7), 1000.0).error > 2 * errors[-1]
    assert fit.expect((1.0, 6.4e7), 1e9).error <= errors[0]


def test_the_truth_is_within_a_few_errors() -> None:
    fit = taught(1.5, 40, noise=0.15)
    for size in SIZES:
        expected = fit.expect((1.0, size), 40)
        assert abs(expected.seconds - 1.5 * took(size)) < 4 * expected.error


@pytest.mark.parametrize("nonsense", [0.0, -1.0, math.inf, math.nan])
def test_what_can_be_no_duration_is_passed_over(nonsense: float) -> None:
    fit = Fit(PRIOR)
    for number in range(5):
        fit.observe((1.0, 1e8), nonsense, number)
    assert seconds(fit, 1e8) == pytest.approx(0.12)


def test_nothing_takes_no_time() -> None:
    assert Fit(PRIOR).expect((0.0, 0.0), 0.0) == Expected(0.0)
    assert Expected(0.0).low == 0


def test_errors_of_a_sum_add_in_squares() -> None:
    both = Expected(1.0, 0.3) + Expected(2.0, 0.4)
    assert both.seconds == pytest.approx(3.0)
    assert both.error == pytest.approx(0.5)


@pytest.mark.parametrize("prior", [(0.0, 1.0), (1.0, -1.0), (1.0, math.inf)])
def test_a_prior_must_be_positive(prior: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        Fit(prior)
