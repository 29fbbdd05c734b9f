"""JSON texts that are almost right: valid bodies with something changed at any depth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st


class Text(str):
    """JSON, or not, to be written as it is."""


class Members(list[tuple[str, Any]]):
    """An object that may name a key twice."""


Path = tuple[int, ...]

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
deep = st.integers(1, 400) | st.integers(400, 1000) | st.just(5000)


def nested(depth: int, kind: str) -> str:
    """Empty containers in each other."""
    if kind == "{":
        return '{"a":' * depth + "1" + "}" * depth
    return "[" * depth + "]" * depth


nests = st.builds(nested, deep, st.sampled_from("[{"))
numbers = st.sampled_from(
    ["1e999", "-1e999", "NaN", "Infinity", "-Infinity", "-0", "1E400", "01", "+1", "1.", ".5", "-",
     "9" * 30, "9" * 5000, "1e-400", "0.1", "2.0", "18446744073709551616", "-9223372036854775809"]
)  # fmt: skip
strings = st.sampled_from(
    [r'"\ud800"', r'"\udc00\ud800"', r'"\u0000"', '""', '"\x00"', '"\t"', r'"\x41"', '"', "'a'",
     '"\u2028\U0001f600"', f'"{"x" * 100_000}"', r'"\uD83D\uDE00"']
)  # fmt: skip
odd = (
    numbers
    | strings
    | nests
    | nests.map(json.dumps)  # arguments of a tool call are JSON in a string
    | plain.map(json.dumps)
    | plain.map(json.dumps).map(json.dumps)
    | st.sampled_from(["", "nul", "[,]", "{,}", "[1,]", '{"a"}', "//", "\ufeff{}"])
)


def parts(value: Any, path: Path = ()) -> Iterator[Path]:
    """Where there is something to change."""
    yield path
    if isinstance(value, Members):
        for index, (_, item) in enumerate(value):
            yield from parts(item, (*path, index))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from parts(item, (*path, index))


def of(value: Any) -> Any:
    """JSON values with objects as Members."""
    if isinstance(value, dict):
        return Members((key, of(item)) for key, item in value.items())
    return [of(item) for item in value] if isinstance(value, list) else value


def written(value: Any) -> str:
    """As JSON."""
    if isinstance(value, Text):
        return str(value)
    if isinstance(value, Members):
        return "{" + ",".join(f"{_key(key)}:{written(item)}" for key, item in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value)


def _key(key: str) -> str:
    return str(key) if isinstance(key, Text) else json.dumps(key)


@st.composite
def changed(draw: st.DrawFn, value: Any, keys: st.SearchStrategy[str], most: int = 3) -> str:
    """``value`` with up to ``most`` changes, among them members under one of ``keys``."""
    tree = of(value)
    for _ in range(draw(st.integers(0, most))):
        path = draw(st.sampled_from(list(parts(tree))))
        new = Text(draw(odd))
        how = draw(st.sampled_from(["replace", "drop", "member", "member", "twice"]))
        tree = _with(tree, path, how, draw(keys), new)
    return written(tree)


def _with(tree: Any, path: Path, how: str, key: str, new: Text) -> Any:
    if path:
        index, *rest = path
        if how == "drop" and not rest:
            del tree[index]
        elif isinstance(tree, Members):
            tree[index] = (tree[index][0], _with(tree[index][1], tuple(rest), how, key, new))
        else:
            tree[index] = _with(tree[index], tuple(rest), how, key, new)
        return tree
    if how == "member" and isinstance(tree, Members):
        tree.append((key, new))
        return tree
    if how == "twice" and isinstance(tree, Members) and tree:
        tree.append((tree[0][0], new))
        return tree
    return new


@st.composite
def one_changed(draw: st.DrawFn, value: dict[str, Any]) -> str:
    """An object with one member that is something else."""
    return written(of({**value, draw(st.sampled_from(list(value))): Text(draw(odd))}))


@st.composite
def broken(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> bytes:
    """Their bytes, now and then cut, spliced, or of another encoding."""
    data = draw(texts).encode("utf-8", "surrogatepass")
    how = draw(st.sampled_from(["as it is"] * 16 + ["cut", "splice", "utf-16", "more"]))
    if how == "cut":
        return data[: draw(st.integers(0, len(data)))]
    if how == "splice":
        at = draw(st.integers(0, len(data)))
        return data[:at] + draw(st.binary(min_size=1, max_size=8)) + data[at:]
    if how == "utf-16":
        return data.decode("utf-8", "surrogatepass").encode("utf-16", "surrogatepass")
    return data + draw(st.binary(max_size=8)) if how == "more" else data
