"""Configuration from TOML. Whatever is wrong with it is one line, before anything starts.

Structs are declared as ``class MyConfig(Config, frozen=True)``: keyword-only, unknown keys
are errors. Durations are floats in seconds and their keys end in ``_seconds``. Addresses are
declared as ``Address`` and written as text. Limits go into the type, for instance
``Annotated[float, msgspec.Meta(gt=0)]``, or raise ValueError in ``__post_init__``.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from contraflow.runtime.address import Address

MOST_SECONDS = 604_800
"""A week."""

Seconds = Annotated[float, msgspec.Meta(ge=0.001, le=MOST_SECONDS)]
"""A duration in seconds, of a millisecond to a week."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all configuration structs."""


class ConfigError(Exception):
    """The process can not start as configured. ``str(error)`` is one line for the operator."""


class PortInUse(ConfigError):
    """Another process listens on the address."""

    def __init__(self, address: Address) -> None:
        super().__init__(f"{address} is in use by another process")
        self.address = address


ConfigT = TypeVar("ConfigT", bound=Config)


def load(path: Path, kind: type[ConfigT]) -> ConfigT:
    """The configuration in a file. Raises ConfigError, which names the file and the key."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8") from error
    return parse(text, kind, str(path))


def parse(text: str, kind: type[ConfigT], source: str) -> ConfigT:
    """As ``load``, from text; ``source`` is named in errors."""
    try:
        return msgspec.convert(tomllib.loads(text), kind, dec_hook=_decode)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: {error}") from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {_plain(str(error))}") from error


def _decode(kind: type, value: object) -> Any:
    if kind is Address and isinstance(value, str):
        return Address.parse(value)
    raise TypeError(f"expected text for {kind.__name__}, got {type(value).__name__}")


def _plain(message: str) -> str:
    """msgspec's sentence with the key first: ``etcd.endpoints: expected `array`, got `str```."""
    message, _, path = message.partition(" - at `")
    key = path.rstrip("`").removeprefix("$").removeprefix(".")
    if found := re.fullmatch(r"Object contains unknown field `(.+)`", message):
        return f"unknown key {_join(key, found[1])!r}"
    if found := re.fullmatch(r"Object missing required field `(.+)`", message):
        return f"missing key {_join(key, found[1])!r}"
    return f"{key}: {message[0].lower()}{message[1:]}" if key else message


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)
