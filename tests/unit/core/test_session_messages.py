"""Keys of conversations without an id: a chain over their messages."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from contraflow.core.session import is_session_key, message_chain, message_key, session_key

SECRET = b"s" * 32
MESSAGES = [b'{"content":"hi","role":"user"}', b'{"content":"yes?","role":"assistant"}']


def test_a_link_is_sha256_of_its_predecessor_and_its_message() -> None:
    parts = [b"acme", b"tiny", b"chat"]
    root = b"messages" + b"".join(len(p).to_bytes(4, "little") + p for p in parts)
    link = hmac.new(SECRET, root, hashlib.sha256).digest()
    expected = []
    for message in MESSAGES:
        link = hashlib.sha256(link + message).digest()
        expected.append(link)
    assert message_chain(SECRET, "acme", "tiny", "chat", MESSAGES) == expected


def test_a_key_is_hmac_sha256_of_a_link_cut_to_128_bits() -> None:
    [link] = message_chain(SECRET, "acme", "tiny", "chat", MESSAGES[:1])
    key = message_key(SECRET, link)
    assert key == hmac.new(SECRET, b"prefix" + link, hashlib.sha256).hexdigest()[:32]
    assert is_session_key(key)


def test_no_messages_have_no_link() -> None:
    assert message_chain(SECRET, "acme", "tiny", "chat", []) == []


@pytest.mark.parametrize(
    "other",
    [(b"t" * 32, "acme", "tiny", "chat"), (SECRET, "acm", "etiny", "chat"),
     (SECRET, "acme", "tinychat", ""), (SECRET, "acme", "tiny", "messages")],
)  # fmt: skip
def test_secret_tenant_model_and_form_tell_conversations_apart(
    other: tuple[bytes, str, str, str],
) -> None:
    links = message_chain(SECRET, "acme", "tiny", "chat", MESSAGES)
    assert not set(links) & set(message_chain(*other, MESSAGES))


def test_messages_are_no_session_id() -> None:
    [link] = message_chain(SECRET, "acme", "tiny", "chat", MESSAGES[:1])
    assert message_key(SECRET, link) != session_key(SECRET, "acme", link.hex())
