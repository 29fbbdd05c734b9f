"""What a campaign has to have met."""

from collections import Counter

from contraflow.verify import coverage


def test_all_that_is_required_has_a_name_of_its_own() -> None:
    names = coverage.required()
    assert len(names) == len(set(names))
    assert coverage.missing(Counter(dict.fromkeys(names, 5)), 5) == []


def test_what_was_met_too_seldom_is_missing() -> None:
    seen = Counter(dict.fromkeys(coverage.required(), 5))
    seen["KILL_DECODE"] = 4
    assert coverage.missing(seen, 5) == ["KILL_DECODE"]
