"""The ``contraflow`` object inside ``kv_connector_extra_config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from contraflow.core.fleet import Role, is_endpoint


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator tells a connector.

    ``agent``: gRPC target of the node's agent, ``unix:/run/contraflow/engines.sock``; empty
    for none. ``endpoint``: base URL at which routers reach this engine's OpenAI server;
    needed with an agent, since the engine process does not know it. ``role``: ``prefill``
    or ``decode``; by default decode for ``kv_consumer``, else prefill.
    """

    agent: str = ""
    endpoint: str = ""
    role: str = ""


def parse(value: object, kv_role: str) -> Settings:
    """Settings with the role filled in.

    Raises ValueError with one clear line; the engine then refuses to start.
    """
    if value is None:
        value = {}
    if not isinstance(value, Mapping):
        raise ValueError("kv_connector_extra_config.contraflow must be an object")
    known = {field.name for field in fields(Settings)}
    if unknown := sorted(set(value) - known):
        raise ValueError(
            f"kv_connector_extra_config.contraflow has unknown keys: {', '.join(unknown)}; "
            f"known are {', '.join(sorted(known))}"
        )
    texts: dict[str, Any] = dict(value)
    for key, text in texts.items():
        if not isinstance(text, str):
            raise ValueError(f"kv_connector_extra_config.contraflow.{key} must be a string")
    role = texts.pop("role", "") or ("decode" if kv_role == "kv_consumer" else "prefill")
    if role not in set(Role):
        raise ValueError(
            f"kv_connector_extra_config.contraflow.role is {role!r}; it must be prefill or decode"
        )
    settings = Settings(role=role, **texts)
    if settings.agent and not settings.endpoint:
        raise ValueError("kv_connector_extra_config.contraflow.endpoint is needed with an agent")
    if settings.endpoint and not is_endpoint(settings.endpoint):
        raise ValueError(
            f"kv_connector_extra_config.contraflow.endpoint is {settings.endpoint!r}; it must be "
            "http://host:port, where routers reach this engine's OpenAI server, and nothing else"
        )
    if settings.agent.startswith(("http://", "https://")):
        raise ValueError(
            f"kv_connector_extra_config.contraflow.agent is {settings.agent!r}; it must be a gRPC "
            "target, such as unix:/run/contraflow/engines.sock or 10.0.0.5:7200"
        )
    return settings
