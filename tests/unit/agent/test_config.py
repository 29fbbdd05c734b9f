from pathlib import Path

import pytest

from contraflow.agent.config import AgentConfig
from contraflow.agent.main import run
from contraflow.core.retention import Policy
from contraflow.runtime.config import ConfigError, parse

GOOD = """
listen = "127.0.0.1:7500"
link_socket = "unix:/run/contraflow/engines.sock"
directory = ["127.0.0.1:7400"]
"""


def test_defaults() -> None:
    config = parse(GOOD, AgentConfig, "agent.toml")
    assert config.advertised == "127.0.0.1:7500"
    assert config.claim.start_by_seconds == 60
    assert config.claim.max_read_seconds == 10
    assert config.claim.acquire_timeout_seconds == 0.05
    assert config.retention.policy == Policy(budget_share=0.5, ttl=480.0, max_idle=1800.0)
    assert config.liveness_ttl_seconds == 10


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("extra = 1", "unknown key 'extra'"),
        ("liveness_ttl_seconds = 0", "liveness_ttl_seconds"),
        ('advertise_address = "unix:/a"', "must be 'host:port'"),
        ('advertise_address = "host:0"', "needs a port"),
        ("[retention]\nbudget_share = 1.5", "retention.budget_share"),
        ("[retention]\nttl_seconds = 0.5", "retention.ttl_seconds: expected `float` >= 1.0"),
        ("[retention]\nttl_seconds = inf", "retention.ttl_seconds: expected `float` <= 604800.0"),
        ("[retention]\nmax_idle_seconds = -1", "retention.max_idle_seconds"),
        ("[retention]\nmax_idle_seconds = inf", "retention.max_idle_seconds"),
        ("[claim]\nstart_by = 5", "unknown key 'claim.start_by'"),
    ],
)
def test_mistakes_are_named(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(GOOD + line, AgentConfig, "agent.toml")


def test_a_handle_may_be_renewed_never() -> None:
    config = parse(GOOD + "[retention]\nmax_idle_seconds = 0", AgentConfig, "agent.toml")
    assert config.retention.policy.max_idle == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("unix:/run/contraflow/engines.sock", "127.0.0.1:1", "link_socket must be"),
        ("127.0.0.1:7500", "0.0.0.0:7500", "advertise_address is needed"),
        ("127.0.0.1:7500", "127.0.0.1:0", "needs a port"),
        ('["127.0.0.1:7400"]', "[]", "directory"),
    ],
)
def test_values_that_can_not_be(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(GOOD.replace(old, new), AgentConfig, "agent.toml")


def test_a_bad_file_ends_the_process_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(GOOD + "extra = 1")
    assert run(path) == 2
    assert capsys.readouterr().err == f"contraflow: {path}: unknown key 'extra'\n"
