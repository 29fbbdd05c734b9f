"""Nothing on a page with sessions can stay untried or uncompared."""

from __future__ import annotations

import pytest
from tests.support.doc_sessions import BadPage, Session, sessions_of

PAIR = "```bash\nls\n```\n\n```text\nREADME.md\n```\n"


def session(*expected: str) -> Session:
    page = "```bash\nls\n```\n```text\n" + "\n".join(expected) + "\n```\n"
    (found,) = sessions_of(page)
    return found


def test_sessions_come_in_order_with_their_output() -> None:
    other = "```bash again\n# both\nls &&\nls\n```\n```text\n  a,\n\n…\n```\n"
    page = f"# Files\n\n{PAIR}\nOr:\n\n{other}"

    assert sessions_of(page) == [
        Session(3, "ls\n", ("README.md",), again=False),
        Session(13, "# both\nls &&\nls\n", ("a", "…"), again=True),
    ]


@pytest.mark.parametrize(
    "added",
    [
        "```bash\nrm x\n```\n",
        "```bash\nrm x\n```\n```bash\nls\n```\n",
        "```bash\nrm x\n```\n```text\n```\n",
        "```bash\nrm x\n```\n```text\n…\n{\n}\n```\n",
        "```bash\n# rm x\n```\n```text\nx\n```\n",
        "```sh\nrm x\n```\n```text\nx\n```\n",
        "```\nrm x\n```\n```text\nx\n```\n",
        "```console\n$ rm x\nx\n```\n",
        "~~~bash\nrm x\n~~~\n```text\nx\n```\n",
        " ```bash\n rm x\n ```\n```text\nx\n```\n",
        "````bash\nrm x\n````\n```text\nx\n```\n",
        "\n    rm x\n",
        "\n\trm x\n",
        "<pre>rm x</pre>\n",
        "```bash\nrm x\n```\n```text\nx\n",
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_what_would_not_be_run_or_compared_is_refused(added: str, first: bool) -> None:
    with pytest.raises(BadPage):
        sessions_of(added + PAIR if first else PAIR + added)


def test_output_may_have_more_lines_around_and_between() -> None:
    assert (
        session('"a": 1', '"b": "x…z"').missing('{\n  "a": 1,\n  "c": 3,\n  "b": "xyz"\n}\n')
        is None
    )


@pytest.mark.parametrize(
    ("output", "missing"),
    [
        ("", "one"),
        ("one\n", "two"),
        ("two\none\n", "two"),
        ("one and two\n", "one"),
        ("one\ntwo more\n", "two"),
    ],
)
def test_a_line_that_is_not_there_or_out_of_order_is_named(output: str, missing: str) -> None:
    assert session("one", "two").missing(output) == missing


def test_signs_of_patterns_mean_themselves() -> None:
    assert session("a.*").missing("abc\n") == "a.*"
    assert session("a…c[").missing("a, b, c[\n") is None
