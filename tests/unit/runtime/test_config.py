"""Configuration: what is wrong is said in one line that names the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from contraflow.runtime.address import Address
from contraflow.runtime.config import Config, ConfigError, Seconds, load, parse


class Inner(Config, frozen=True):
    wait_seconds: Seconds = 1.0


class Outer(Config, frozen=True):
    name: str
    listen: Address = Address("127.0.0.1", 1)
    others: tuple[Address, ...] = ()
    inner: Inner = Inner()


def test_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(
        'name = "x"\nlisten = "unix:/run/x.sock"\nothers = ["[::1]:2"]\n[inner]\nwait_seconds = 2\n'
    )
    assert load(path, Outer) == Outer(
        name="x",
        listen=Address(unix_path="/run/x.sock"),
        others=(Address("::1", 2),),
        inner=Inner(wait_seconds=2.0),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f: missing key 'name'"),
        ('name = "x"\nnmae = 1', "f: unknown key 'nmae'"),
        ('name = "x"\n[inner]\nwait = 1', "f: unknown key 'inner.wait'"),
        ("name = 1", "f: name: expected `str`, got `int`"),
        ('name = "x"\nlisten = 5', "f: listen: expected text for Address, got int"),
        (
            'name = "x"\nothers = ["a:1", "b"]',
            "f: others[1]: 'b' is not 'host:port', '[v6]:port' or 'unix:/path'",
        ),
    ]
    + [
        (
            f'name = "x"\n[inner]\nwait_seconds = {seconds}',
            f"f: inner.wait_seconds: expected `float` {bound}",
        )
        for seconds, bound in (
            ("0", ">= 0.001"),
            ("-1.0", ">= 0.001"),
            ("1e-9", ">= 0.001"),
            ("nan", ">= 0.001"),
            ("1e300", "<= 604800.0"),
            ("inf", "<= 604800.0"),
        )
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, Outer, "f")
    assert str(caught.value) == message


def test_syntax_errors_name_the_line() -> None:
    with pytest.raises(ConfigError, match=r"^f: .*line 2"):
        parse('name = "x"\n= 3', Outer, "f")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml: No such file"):
        load(tmp_path / "gone.toml", Outer)


@pytest.mark.parametrize("text", ["127.0.0.1:80", "[::1]:80", "host:0", "unix:/run/a.sock"])
def test_scenario_14_addresses_parse_back(text: str) -> None:
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "host", "host:", ":80", "host:x", "host:65536", "::1:80", "unix:a", "unix:/" + "a" * 107],
)
def test_scenario_14_bad_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not|brackets|socket"):
        Address.parse(text)
