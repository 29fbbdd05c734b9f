"""Session keys and salts: derived, divided by tenant and purpose, and without collisions."""

from __future__ import annotations

import hashlib
import hmac
import itertools

import pytest

from contraflow.core.session import cache_salt, is_session_key, session_key

SECRET = b"s" * 32
TRICKY = ["", "a", "b", "ab", "ba", "\0", "a\0", "\x01\0\0\0a", "é", "e\u0301", "🙂", "\ud800", "?"]


def test_a_session_key_is_hmac_sha256_cut_to_128_bits() -> None:
    message = b"session" + b"\x04\0\0\0acme" + b"\x02\0\0\0" + "é".encode()
    expected = hmac.new(SECRET, message, hashlib.sha256).hexdigest()[:32]
    assert session_key(SECRET, "acme", "é") == expected
    assert is_session_key(expected)


def test_no_two_pairs_share_a_key() -> None:
    pairs = list(itertools.product(TRICKY, TRICKY))
    keys = {session_key(SECRET, *pair) for pair in pairs}
    salts = {cache_salt(SECRET, *pair) for pair in pairs}
    assert len(keys) == len(salts) == len(pairs)
    assert not keys & salts


def test_a_key_reveals_nothing_without_the_secret() -> None:
    assert session_key(SECRET, "t", "s") != session_key(b"other", "t", "s")


@pytest.mark.parametrize(
    "text", ["", "0" * 31, "0" * 33, "0" * 31 + "G", "A" * 32, "0" * 31 + "\n", "é" * 32, "٠" * 32]
)
def test_what_is_no_session_key(text: str) -> None:
    assert not is_session_key(text)
