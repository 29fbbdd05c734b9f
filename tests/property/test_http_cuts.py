"""Requests are the same however their bytes are cut on the way."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from contraflow.web import ServerLimits
from contraflow.web.request_reader import RequestReader

tokens = st.text("abcXYZ019-_", min_size=1, max_size=8)
values = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=12)


@dataclass(frozen=True, slots=True)
class Sent:
    """One request; a body in chunks unless ``chunks`` is None."""

    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    chunks: int | None
    upgrade: bool

    def written(self) -> bytes:
        target = f"/{self.path}" + (f"?{self.query}" if self.query else "")
        lines = [f"{self.method} {target} HTTP/1.1", "Host: here"]
        lines += [f"X-{name}: {value}" for name, value in self.headers]
        if self.upgrade:
            lines += ["Connection: Upgrade", "Upgrade: h2c"]
        if self.chunks is None:
            lines.append(f"Content-Length: {len(self.body)}")
            body = self.body
        else:
            lines.append("Transfer-Encoding: chunked")
            size = max(1, self.chunks)
            parts = [self.body[at : at + size] for at in range(0, len(self.body), size)]
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        return "\r\n".join([*lines, "", ""]).encode() + body


requests = st.builds(
    Sent,
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE"]),
    path=tokens,
    query=st.just("") | tokens,
    headers=st.lists(st.tuples(tokens, values), max_size=3).map(tuple),
    body=st.binary(max_size=40),
    chunks=st.none() | st.integers(1, 20),
    upgrade=st.booleans(),
)


@given(st.lists(requests, min_size=1, max_size=3), st.lists(st.integers(0, 900), max_size=10))
def test_cuts_do_not_matter(sent: list[Sent], cuts: list[int]) -> None:
    data = b"".join(one.written() for one in sent)
    marks = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    reader = RequestReader(ServerLimits())
    for start, end in itertools.pairwise(marks):
        if start < end:
            reader.feed(data[start:end])
    found = [(one.method, one.path, one.query, one.body) for one in reader.ready]
    assert found == [(one.method, f"/{one.path}", one.query, one.body) for one in sent]
    for request, one in zip(reader.ready, sent, strict=True):
        own = [(b"x-" + name.lower().encode(), value.encode()) for name, value in one.headers]
        assert [pair for pair in request.headers if pair[0].startswith(b"x-")] == own
    reader.close()
