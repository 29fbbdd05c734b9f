"""What the directory accepts. Every refusal is an InvalidArgument that names the field."""

from __future__ import annotations

from contraflow.core.errors import InvalidArgument
from contraflow.core.fleet import Engine, Session, is_endpoint
from contraflow.core.session import is_session_key

_MAX_TEXT = 512


def require_engine(engine: Engine) -> None:
    """Raises InvalidArgument."""
    _require_id(engine.engine_id, "engine.engine_id")
    _require_text(engine.boot_nonce, "engine.boot_nonce")
    _require_text(engine.agent_address, "engine.agent_address")
    if not is_endpoint(engine.endpoint):
        raise InvalidArgument("an endpoint is http://host:port", field="engine.endpoint")
    if engine.block_size == 0:
        raise InvalidArgument("a block has at least one token", field="engine.block_size")


def session_error(session: Session) -> InvalidArgument | None:
    """What is wrong with a session, or None."""
    try:
        if not is_session_key(session.session_key):
            raise InvalidArgument("a session key is 32 hex digits", field="session_key")
        _require_id(session.engine_id, "engine_id")
        _require_text(session.handle_id, "handle_id")
        _require_text(session.agent_address, "agent_address")
    except InvalidArgument as error:
        return error
    return None


def require_batch(count: int, limit: int, field: str) -> None:
    """Raises InvalidArgument."""
    if count > limit:
        raise InvalidArgument(f"{count} items, at most {limit} are taken", field=field)


def _require_text(text: str, field: str) -> None:
    if not text or len(text) > _MAX_TEXT or not text.isprintable():
        raise InvalidArgument(f"{field} must be 1 to {_MAX_TEXT} printable characters", field=field)


def _require_id(text: str, field: str) -> None:
    _require_text(text, field)
    # "<engine id>/<remote request id>" is a handle id: the first slash divides it.
    if "/" in text:
        raise InvalidArgument(f"{field} must not contain '/'", field=field)
