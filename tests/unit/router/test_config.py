"""What a router may be configured to."""

from __future__ import annotations

from pathlib import Path

import pytest

from contraflow.router.config import RouterConfig, cluster_secret
from contraflow.runtime.config import ConfigError, parse

BASE = """
listen = "127.0.0.1:8000"
grpc_listen = "[::1]:8001"
directory = ["127.0.0.1:7400"]
"""
SECRET = 'cluster_secret = "0123456789abcdef"\n'


def config(text: str) -> RouterConfig:
    return parse(text, RouterConfig, "router.toml")


def test_defaults() -> None:
    made = config(BASE + SECRET)
    assert made.recompute_threshold_tokens == 64
    assert made.decision == "threshold"
    assert made.acquire_deadline_seconds == 0.05
    assert made.claim_start_by_seconds == 60
    assert made.tenants == {}
    assert str(made.grpc_listen) == "[::1]:8001"


def test_tenants_and_limits() -> None:
    text = BASE + SECRET + '[tenants.red]\napi_keys = ["k"]\n[http]\nmax_body_bytes = 9\n'
    made = config(text)
    assert made.tenants["red"].api_keys == ("k",)
    assert made.http.max_body_bytes == 9


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (BASE, "cluster_secret"),
        (BASE + SECRET + 'cluster_secret_file = "f"', "cluster_secret_file"),
        (BASE + SECRET + "colour = 1", "colour"),
        (BASE + SECRET + "[http]\ncolour = 1", "http.colour"),
        (BASE + SECRET + "acquire_deadline_seconds = 0", "acquire_deadline_seconds"),
        (BASE + SECRET + "recompute_threshold_tokens = 0", "recompute_threshold_tokens"),
        (BASE + SECRET + 'decision = "dice"', "decision"),
        (BASE + SECRET + 'log_level = "loud"', "log_level"),
        (BASE + SECRET + 'cost_profile = "abacus"', "cpu-demo"),
        (BASE + SECRET + "[tenants.red]\napi_keys = []", "api_keys"),
        (BASE + SECRET + '[tenants.red]\napi_keys = ["a b"]', "API key"),
        (BASE + SECRET + '[tenants.a]\napi_keys = ["k"]\n[tenants.b]\napi_keys = ["k"]', "once"),
        (BASE.replace('["127.0.0.1:7400"]', "[]") + SECRET, "directory"),
        (BASE.replace("127.0.0.1:8000", "nowhere") + SECRET, "nowhere"),
        (BASE.replace("127.0.0.1:8000", "unix:/s") + SECRET, "listen"),
    ],
)
def test_mistakes_are_one_line_that_names_the_key(text: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(text)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_secret_is_never_in_an_error_or_a_short_one() -> None:
    with pytest.raises(ConfigError, match="fewer than 16 bytes") as caught:
        cluster_secret(config(BASE + 'cluster_secret = "tooshort"'))
    assert "tooshort" not in str(caught.value)


def test_the_secret_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    made = config(BASE + f'cluster_secret_file = "{file}"')
    with pytest.raises(ConfigError, match="No such file"):
        cluster_secret(made)
    file.write_bytes(b"  0123456789abcdef\n")
    assert cluster_secret(made) == b"0123456789abcdef"
