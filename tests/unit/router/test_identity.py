"""Tenants and sessions of a request."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from contraflow.core.plan import Continuation
from contraflow.core.session import cache_salt, is_session_key, session_key
from contraflow.router.affinity import Produced
from contraflow.router.messages import reply_digest
from contraflow.router.sessions import Identity, engine_overrides, identify
from contraflow.router.tenancy import DEFAULT_TENANT, Tenancy
from contraflow.web import ApiError, BodyError, parse_body

SECRET = b"0123456789abcdef"


def fields(**values: Any) -> dict[str, msgspec.Raw]:
    return parse_body(msgspec.json.encode(values)).fields


class Knowing:
    """A router that knows these keys, and has seen these replies."""

    def __init__(self, *live: str, replies: dict[tuple[str, str], Produced] | None = None) -> None:
        self._live = live
        self._replies = replies or {}

    def is_live(self, session_key: str) -> bool:
        return session_key in self._live

    def produced(self, session_key: str, reply_digest: str) -> Produced | None:
        return self._replies.get((session_key, reply_digest))


def identified(
    sent: dict[str, msgspec.Raw],
    header: bytes = b"",
    *,
    secret: bytes = SECRET,
    tenant: str = "t",
    model: str = "m",
    path: str = "/v1/chat/completions",
    known: Knowing | None = None,
) -> Identity:
    headers = [(b"x-session-id", header)] if header else []
    return identify(secret, tenant, model, path, sent, headers, known or Knowing())


def key_of(header: bytes = b"", tenant: str = "t", **values: Any) -> str:
    return identified(fields(**values), header, tenant=tenant).session_key


def test_without_keys_everyone_is_the_default_tenant() -> None:
    assert Tenancy({}).tenant_of(None) == DEFAULT_TENANT
    assert Tenancy({}).tenant_of(b"Bearer whatever") == DEFAULT_TENANT


def test_keys_name_tenants() -> None:
    tenancy = Tenancy({"red": ["r1", "r2"], "blue": ["b1"]})
    assert tenancy.tenant_of(b"Bearer r2") == "red"
    assert tenancy.tenant_of(b"bearer  b1 ") == "blue"


@pytest.mark.parametrize(
    "header", [None, b"", b"Bearer", b"Bearer ", b"Basic r1", b"r1", b"Bearer R1", b"Bearer \xff"]
)
def test_anything_else_is_refused(header: bytes | None) -> None:
    with pytest.raises(ApiError) as caught:
        Tenancy({"red": ["r1"]}).tenant_of(header)
    assert caught.value.status == 401
    assert (b"www-authenticate", b"Bearer") in caught.value.headers


def test_the_first_name_of_a_session_counts() -> None:
    names: dict[str, Any] = {"conversation_id": "c", "prompt_cache_key": "p"}
    assert key_of(b"h", session_id="s", **names) == session_key(SECRET, "t", "s")
    assert key_of(b"h", **names) == session_key(SECRET, "t", "h")
    assert key_of(**names) == session_key(SECRET, "t", "c")
    assert key_of(prompt_cache_key="p") == session_key(SECRET, "t", "p")
    assert key_of(b"h", session_id=None) == key_of(b"h", session_id="") == key_of(b"h")
    assert key_of() == key_of(session_id="") == ""


def test_header_and_body_name_the_same_session() -> None:
    assert key_of("\u00e9".encode()) == key_of(session_id="\u00e9")
    assert is_session_key(key_of(b"\xff\xfe"))


def test_tenants_and_secrets_tell_sessions_apart() -> None:
    assert key_of(session_id="s", tenant="t1") != key_of(session_id="s", tenant="t2")
    other = identified(fields(session_id="s"), secret=b"fedcba9876543210")
    assert other.session_key != key_of(session_id="s")


@pytest.mark.parametrize("name", ["session_id", "conversation_id", "prompt_cache_key"])
@pytest.mark.parametrize("value", [1, True, [], {}])
def test_ids_of_a_wrong_type_are_refused_even_if_another_counts(name: str, value: Any) -> None:
    with pytest.raises(BodyError) as caught:
        key_of(b"h", **{"session_id": "s", name: value})
    assert (caught.value.status, caught.value.param) == (400, name)


def test_salts() -> None:
    plain = identified(fields())
    salted = identified(fields(cache_salt="mine"))
    assert plain.cache_salt == cache_salt(SECRET, "t")
    assert salted.cache_salt == cache_salt(SECRET, "t", "mine") != plain.cache_salt
    with pytest.raises(BodyError):
        identified(fields(cache_salt=""))


USER, REPLY, MORE = (
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yes?"},
    {"role": "user", "content": "go on"},
)
SYSTEM = {"role": "system", "content": "be brief"}


def chat(*messages: Any, known: Knowing | None = None, **values: Any) -> Identity:
    return identified(fields(messages=messages), known=known, **values)


def test_a_chat_without_an_id_is_its_messages() -> None:
    first = chat(USER)
    assert is_session_key(first.session_key)
    assert first.message_digest == first.session_key
    assert first.continues == Continuation()
    others = [chat(MORE), chat(USER, REPLY), chat(USER, tenant="u"), chat(USER, model="n"),
              chat(USER, path="/v1/messages"), chat(USER, secret=b"fedcba9876543210")]  # fmt: skip
    assert len({first.session_key, *(other.session_key for other in others)}) == 7


def test_an_id_goes_before_the_messages() -> None:
    named = identified(fields(messages=[USER, REPLY, MORE], session_id="s"))
    assert named.session_key == session_key(SECRET, "t", "s")
    assert named.continues is None
    # Its messages still tell its branches apart.
    assert named.message_digest == chat(USER, REPLY, MORE).session_key
    assert named.earlier_digests == (chat(USER).session_key,)


@pytest.mark.parametrize(
    ("path", "values"),
    [("/v1/completions", {"prompt": "hi"}), ("/v1/completions", {"messages": [USER]}),
     ("/v1/chat/completions", {}), ("/v1/chat/completions", {"messages": []}),
     ("/v1/chat/completions", {"messages": "hi"}), ("/v1/messages", {"system": "be brief"})],
)  # fmt: skip
def test_without_messages_there_is_no_session(path: str, values: Any) -> None:
    found = identified(fields(**values), path=path)
    assert (found.session_key, found.continues) == ("", None)


def test_a_turn_goes_on_from_the_messages_before_the_newest_reply_that_is_known() -> None:
    first, second = chat(USER).session_key, chat(USER, REPLY, MORE).session_key
    third = (USER, REPLY, MORE, REPLY, MORE)
    for live, expected in (((first, second), second), ((first,), first), ((), "")):
        found = chat(*third, known=Knowing(*live))
        assert found.continues == Continuation(expected)
        assert found.session_key == chat(*third).session_key


def test_an_edit_leaves_the_messages_before_it() -> None:
    live = [chat(USER).session_key, chat(USER, REPLY, MORE).session_key]
    edited = chat(USER, REPLY, USER, REPLY, MORE, known=Knowing(*live))
    assert edited.continues == Continuation(live[0])


def test_nothing_goes_on_from_messages_without_a_reply_behind_them() -> None:
    live = [chat(SYSTEM).session_key, chat(SYSTEM, USER).session_key]
    assert chat(SYSTEM, USER, known=Knowing(*live)).continues == Continuation()
    assert chat(SYSTEM, USER, MORE, known=Knowing(*live)).continues == Continuation()
    assert chat(SYSTEM, USER, REPLY, MORE, known=Knowing(live[0])).continues == Continuation()


def test_the_turn_that_made_the_reply_is_named_where_it_was_seen() -> None:
    first = chat(USER).session_key
    seen = {(first, reply_digest(REPLY)): Produced("turn-1", "d1")}
    found = chat(USER, REPLY, MORE, known=Knowing(replies=seen))
    assert found.continues == Continuation(first, "turn-1", "d1")
    assert found.reply_digest == reply_digest(REPLY)
    other = chat(USER, {**REPLY, "content": "no"}, MORE, known=Knowing(first, replies=seen))
    assert other.continues == Continuation(first)


def test_a_spent_reply_is_named_but_is_no_reason_to_look() -> None:
    first = chat(USER).session_key
    spent = {(first, reply_digest(REPLY)): Produced("turn-1", "d1", spent=True)}
    assert chat(USER, REPLY, MORE, known=Knowing(replies=spent)).continues == Continuation()
    found = chat(USER, REPLY, MORE, known=Knowing(first, replies=spent))
    assert found.continues == Continuation(first, "turn-1", "d1")


def test_a_system_prompt_beside_the_messages_belongs_to_them() -> None:
    def turn(system: Any, *messages: Any, known: Knowing | None = None) -> Identity:
        sent = fields(messages=messages, system=system)
        return identified(sent, path="/v1/messages", known=known)

    first = turn("be brief", USER).session_key
    assert first != turn("be long", USER).session_key
    marked = [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]
    found = turn(marked, USER, REPLY, MORE, known=Knowing(first))
    assert found.continues == Continuation(first)


def test_deep_messages_are_for_the_engine_to_refuse() -> None:
    deep: Any = "x"
    for _ in range(700):
        deep = [deep]
    assert chat({"role": "user", "content": deep}).tenant == "t"


def test_engines_get_keys_in_place_of_names() -> None:
    sent = fields(vllm_xargs={"session_id": "x", "kept": 1})
    overrides = engine_overrides(Identity("t", "key", "salt"), sent)
    assert overrides["session_id"] == "key"
    assert overrides["cache_salt"] == "salt"
    assert overrides["conversation_id"] is overrides["prompt_cache_key"] is msgspec.UNSET
    assert bytes(overrides["vllm_xargs"]) == b'{"kept":1}'
    assert engine_overrides(Identity("t", "", "salt"), {})["session_id"] is msgspec.UNSET


def test_more_messages_than_a_conversation_has_name_no_session() -> None:
    many = [{"role": role, "content": "x"} for _ in range(5_000) for role in ("user", "assistant")]
    assert identified(fields(messages=many)).session_key
    many.append({"role": "user", "content": "x"})
    assert identified(fields(messages=many)) == Identity("t", "", cache_salt(SECRET, "t"))
    named = identified(fields(messages=many, session_id="a"))
    assert (named.session_key, named.earlier_digests) == (session_key(SECRET, "t", "a"), ())


# What a turn adds.

ASK = {"role": "user", "content": "hello there"}
REPLY = {"role": "assistant", "content": "hi"}
NEXT = {"role": "user", "content": "go on"}
SINCE = len('{"content":"hi","role":"assistant"}{"content":"go on","role":"user"}')


@pytest.mark.parametrize("named", [True, False])
def test_what_came_after_each_earlier_turn_is_counted_in_bytes(named: bool) -> None:
    own = identified(fields(messages=[ASK])).session_key
    session = {"session_id": "a"} if named else {}
    sent = fields(messages=[ASK, REPLY, NEXT], **session)
    assert identified(sent, known=Knowing(own)).request("m").added == ((own, SINCE),)


def test_every_earlier_turn_of_a_session_has_its_count() -> None:
    more = [{"role": "assistant", "content": "é"}, NEXT]
    found = identified(fields(messages=[ASK, REPLY, NEXT, *more], session_id="a")).added
    last = len('{"content":"é","role":"assistant"}{"content":"go on","role":"user"}'.encode())
    assert found == (last, SINCE + last)


@pytest.mark.parametrize(
    ("content", "countable"),
    [([{"type": "text", "text": "go on"}], True),
     ([{"type": "image_url", "image_url": {"url": "http://a/1.png"}}], False),
     ([{"type": "text", "text": "see"}, {"type": "image", "source": {}}], False),
     ([{"type": "tool_result", "content": "42"}], False),
     (None, True)],
)  # fmt: skip
def test_of_what_is_no_text_nothing_is_known(content: Any, countable: bool) -> None:
    messages = [ASK, REPLY, {"role": "user", "content": content, "name": "x"}]
    [added] = identified(fields(messages=messages, session_id="a")).added
    assert math.isfinite(added) is countable


def test_a_prompt_without_messages_adds_nobody_knows_what() -> None:
    sent = fields(prompt=[1, 2, 3], session_id="a")
    assert identified(sent, path="/v1/completions").request("m").added == ()
