"""The configuration files of deploy/config: they load, and what they call defaults is true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contraflow.agent.config import AgentConfig
from contraflow.directory.config import DirectoryConfig
from contraflow.router.config import RouterConfig
from contraflow.runtime.config import Config, parse

FOLDER = Path(__file__).parents[2] / "deploy" / "config"
KINDS: dict[str, type[Config]] = {
    "directory": DirectoryConfig,
    "agent": AgentConfig,
    "router": RouterConfig,
}
# Keys whose default is that there is none: the file shows an example.
WITHOUT_DEFAULT = {"metrics_listen"}


@pytest.mark.parametrize("name", KINDS)
def test_the_file_loads(name: str) -> None:
    parse((FOLDER / f"{name}.toml").read_text(), KINDS[name], name)


@pytest.mark.parametrize("name", KINDS)
def test_what_is_commented_out_is_the_default(name: str) -> None:
    text = (FOLDER / f"{name}.toml").read_text()
    shown = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.M)
    kept = "\n".join(
        line for line in shown.splitlines() if line.split(" ")[0] not in WITHOUT_DEFAULT
    )
    assert kept != text
    assert parse(kept, KINDS[name], name) == parse(text, KINDS[name], name)


@pytest.mark.parametrize("name", KINDS)
def test_every_key_of_the_first_level_is_shown(name: str) -> None:
    text = (FOLDER / f"{name}.toml").read_text()
    shown = set(re.findall(r"^(?:# )?(\w+) = ", text, flags=re.M))
    shown |= set(re.findall(r"^\[(\w+)", text, flags=re.M))
    keys: set[Any] = {field.name for field in msgspec.structs.fields(KINDS[name])}
    assert keys - shown <= {"cluster_secret"}
