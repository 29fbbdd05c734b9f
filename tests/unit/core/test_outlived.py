"""Which handle goes once the turn that went on from it has one of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from contraflow.core.outlived import Before, outlived


@dataclass(frozen=True)
class Known:
    handle_id: str
    turn_id: str
    message_digest: str = ""
    tenant: str = "red"
    claim_id: str = ""


def found(*handles: Known, after: str = "", handle: str = "", digests: tuple[str, ...] = ()) -> str:
    return outlived(handles, "red", "t9", Before(after, handle, digests))


A, B, C = Known("h1", "t1", "one"), Known("h2", "t2", "one"), Known("h3", "t3", "two")


def test_the_handle_of_the_turn_that_is_known_to_be_the_one_before() -> None:
    assert found(A, B, C, after="t2") == "h2"
    assert found(A, C, after="t2", digests=("one",)) == ""  # another's with the same messages


def test_the_handle_that_is_known_itself() -> None:
    assert found(A, B, C, handle="h2") == "h2"
    assert found(A, C, handle="h2", digests=("two",)) == ""


def test_never_one_that_another_turn_has_claimed() -> None:
    claimed = replace(B, claim_id="c1")
    assert found(A, claimed, after="t2") == ""
    assert found(A, claimed, handle="h2") == ""
    assert found(claimed, C, digests=("one", "two")) == ""


@pytest.mark.parametrize(
    ("digests", "handle"),
    [
        (("two",), "h3"),
        (("two", "one"), "h3"),
        (("none", "two", "one"), "h3"),
        (("one",), ""),  # two may be meant
        (("one", "two"), ""),
        (("none",), ""),
        ((), ""),
        (("",), ""),
    ],
)
def test_the_only_one_with_the_latest_messages_that_any_has(
    digests: tuple[str, ...], handle: str
) -> None:
    assert found(A, B, C, digests=digests) == handle


def test_never_one_without_messages_for_it_may_be_any_branch() -> None:
    assert found(Known("h1", "t1"), digests=("", "one")) == ""


def test_never_the_turns_own() -> None:
    own = Known("h9", "t9", "one")
    assert found(own, A, digests=("one",)) == "h1"
    assert found(own, after="t9") == ""


def test_never_another_tenants() -> None:
    assert found(Known("h1", "t1", "one", tenant="blue"), after="t1") == ""
    assert found(Known("h1", "t1", "one", tenant="blue"), handle="h1") == ""
    assert found(Known("h1", "t1", "one", tenant="blue"), digests=("one",)) == ""
