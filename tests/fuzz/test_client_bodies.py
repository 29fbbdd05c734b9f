"""Bodies that a stranger may send: answered, or refused before any engine hears of them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.bodies import BODIES, FORGED, extras, keys
from tests.fuzz.front_door import FrontDoor, Reply
from tests.fuzz.json_texts import broken, changed, text
from tests.fuzz.stage import Stage
from tests.support.raw_engine import Sent

paths = st.sampled_from(list(BODIES))


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, bytes]:
    path = draw(paths)
    bodies = changed(BODIES[path], keys)
    with_extras = st.tuples(bodies, extras).map(lambda pair: _put_in(*pair))
    return path, draw(broken(with_extras))


def _put_in(body: str, extra: str) -> str:
    return f"{body[:-1]}{extra}}}" if body.endswith("}") and len(body) > 2 else body


headers = st.lists(
    st.sampled_from(
        ["Content-Type: text/plain", "Content-Type: multipart/form-data", "Content-Type:",
         "Content-Encoding: gzip", "X-Session-ID: conversation-1", "X-Session-ID: \udcff\udcfe",
         "X-Session-ID: ", "Authorization: Bearer \udcff", "X-Request-ID: \x01",
         "X-Request-ID: mine", "X-API-Key: k\udc80", "traceparent: \udcff", "tracestate: a,b",
         "Accept-Encoding: br", "Accept: nothing", "X-Data-Parallel-Rank: 7"]
    ) | text.filter(str.isprintable).map(lambda value: f"X-Session-ID: {value}"),
    max_size=3,
)  # fmt: skip


@given(requests(), headers)
def test_a_body_is_served_or_refused_and_leaves_nothing(
    door: Stage[FrontDoor], request: tuple[str, bytes], more: list[str]
) -> None:
    path, body = request
    here = door.world

    async def example() -> None:
        here.reset()
        reply = await here.post(path, body, *more)
        heard = [*here.prefill.sent, *here.decode.sent]
        if reply.status == 200:
            assert here.decode.sent
            for sent in heard:
                _is_ours(sent)
        else:
            assert 400 <= reply.status < 500
            assert not heard
            assert not here.world.agent.acquired
            _is_an_error(path, reply)
        await here.nothing_left()

    door.run(example())


def test_a_plain_turn_goes_well_after_all_that(door: Stage[FrontDoor]) -> None:
    door.run(door.world.still_serves())


def _is_ours(sent: Sent) -> None:
    assert FORGED.encode() not in sent.raw.replace(b"\\u002e", b".")
    try:
        body = sent.body
    except RecursionError:
        return  # deeper than this reader goes, and so is not what was forged above
    assert not {"ec_transfer_params", "conversation_id", "prompt_cache_key"} & body.keys()
    xargs = body.get("vllm_xargs")
    taken = {"kv_transfer_params", "ec_transfer_params", "session_id"}
    assert not (isinstance(xargs, dict) and taken & xargs.keys())
    params = body.get("kv_transfer_params")
    assert params is None or set(params["contraflow"]) >= {"tenant", "turn_id"}
    session = body.get("session_id", "0" * 32)
    assert len(session) == len(body["cache_salt"]) == 32


def _is_an_error(path: str, reply: Reply) -> None:
    said: dict[str, Any] = json.loads(reply.body)
    assert reply.headers["content-type"] == "application/json"
    assert isinstance(said["error"]["message"], str)
    read = not said["error"]["message"].startswith("Malformed HTTP")  # else no path is known
    if path == "/v1/messages" and read:
        assert said.keys() == {"type", "error"}
        assert said["error"].keys() == {"type", "message"}
    else:
        assert said["error"].keys() == {"message", "type", "param", "code"}
        assert said["error"]["code"] == reply.status
