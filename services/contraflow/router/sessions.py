"""Which session a request belongs to, and what the engines get to see of that."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from msgspec import UNSET

from contraflow.core.plan import Continuation, TurnRequest
from contraflow.core.session import cache_salt, message_chain, message_key, session_key
from contraflow.router.affinity import Produced
from contraflow.router.messages import (
    Message,
    canonical,
    is_text,
    kind_of,
    messages_of,
    reply_digest,
)
from contraflow.web import BodyError, find_header, get_str
from contraflow.web.body import XARGS, xargs_without
from contraflow.web.headers import Headers
from contraflow.web.json_splice import Fields

SESSION_HEADER = b"x-session-id"
_MAX_DIGESTS = 16
_MAX_MESSAGES = 10_000
"""More are no conversation, and to digest them would hold up all other turns."""


class Known(Protocol):
    """What a router knows of keys, when a request is identified."""

    def is_live(self, session_key: str) -> bool:
        """True if the view or this router's own affinities tell of a handle under the key."""

    def produced(self, session_key: str, reply_digest: str) -> Produced | None:
        """The turn under the key whose reply has this digest, if this router has seen it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose turn it is, and of which conversation.

    ``session_key`` is what its handle is retained under; empty for a request that names no
    session and has no messages. ``message_digest`` covers all its messages,
    ``earlier_digests`` those up to replies, the latest first, and ``added`` the most tokens that
    the messages after each of these can be. ``continues`` is set where the
    messages stand for a session, with ``reply_digest`` of the reply that they go on from.
    """

    tenant: str
    session_key: str
    cache_salt: str
    message_digest: str = ""
    earlier_digests: tuple[str, ...] = ()
    added: tuple[float, ...] = ()
    continues: Continuation | None = None
    reply_digest: str = ""

    def request(self, model: str, *, skips_prefix_cache: bool = False) -> TurnRequest:
        """What is to be planned."""
        added = tuple(zip(self.earlier_digests, self.added, strict=True))
        return TurnRequest(model, self.session_key, skips_prefix_cache, self.continues, added)


def identify(
    secret: bytes,
    tenant: str,
    model: str,
    path: str,
    fields: Fields,
    headers: Headers,
    known: Known,
) -> Identity:
    """Derive the identity of a request.

    A chat that names no session is the conversation that its messages are: it goes on from the
    longest part of them that ends before a reply and of which a handle is ``known``. Very many
    messages, or values in them, stand for no session. Raises BodyError for ids of a wrong type.
    """
    salt = cache_salt(secret, tenant, _client_salt(fields))
    session_id = _session_id(fields, headers)
    kind = kind_of(path)
    messages = messages_of(kind, fields) if kind else []
    if len(messages) > _MAX_MESSAGES:
        messages = []
    sizes: list[float] = []
    try:
        forms = _measured(messages, sizes)
        links = message_chain(secret, tenant, model, kind, forms)
    except RecursionError:
        links = []
    own = message_key(secret, links[-1]) if links else ""
    replies = [count for count in range(len(links) - 1, 0, -1) if _is_reply(messages[count])]
    earlier = ((count, message_key(secret, links[count - 1])) for count in replies)
    if session_id:
        known_as = session_key(secret, tenant, session_id)
        found = list(islice(earlier, _MAX_DIGESTS))
        digests = tuple(digest for _, digest in found)
        added = tuple(sum(sizes[count:]) for count, _ in found)
        return Identity(tenant, known_as, salt, own, digests, added)
    if not own:
        return Identity(tenant, "", salt)
    for count, key in earlier:
        digest = reply_digest(messages[count])
        produced = known.produced(key, digest)
        if known.is_live(key) or (produced is not None and not produced.spent):
            turn, engine = (produced.turn_id, produced.engine_id) if produced else ("", "")
            before = Continuation(key, turn, engine)
            added = (sum(sizes[count:]),)
            return Identity(tenant, own, salt, own, (key,), added, before, digest)
    return Identity(tenant, own, salt, own, continues=Continuation())


def _measured(messages: Iterable[Message], sizes: list[float]) -> Iterator[bytes]:
    """Canonical forms; to ``sizes`` goes of how many tokens each message is at most.

    No token is less than a byte of text, and what a template puts around a message is less than
    its names and quotes here. Of what is no text, such as an image, nothing is known.
    """
    for message in messages:
        form = canonical(message)
        sizes.append(len(form) if is_text(message) else math.inf)
        yield form


def _is_reply(message: Message) -> bool:
    return message.get("role") == "assistant"


def engine_overrides(identity: Identity, fields: Fields) -> dict[str, Any]:
    """What both legs send in place of the client's session ids and salt. Raises BodyError."""
    overrides: dict[str, Any] = {
        "session_id": identity.session_key or UNSET,
        "conversation_id": UNSET,
        "prompt_cache_key": UNSET,
        "cache_salt": identity.cache_salt,
    }
    if XARGS in fields:
        # vLLM takes a session id from there too, if it finds none elsewhere.
        overrides[XARGS] = xargs_without(fields[XARGS], "session_id")
    return overrides


def _session_id(fields: Fields, headers: Headers) -> str:
    names = ("session_id", "conversation_id", "prompt_cache_key")
    first, second, third = (get_str(fields, name) for name in names)
    header = find_header(headers, SESSION_HEADER) or b""
    return first or header.decode("utf-8", "surrogateescape") or second or third or ""


def _client_salt(fields: Fields) -> str:
    salt = get_str(fields, "cache_salt")
    if salt == "":
        message = "Parameter 'cache_salt' must be a non-empty string if provided."
        raise BodyError(message, param="cache_salt")
    return salt or ""
