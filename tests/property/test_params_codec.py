"""``kv_transfer_params`` survive the way through ``contraflow.v1``, whatever they hold."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contraflow.core.transfer_params import without_private
from contraflow.v1 import transfer_params_pb2 as pb
from contraflow.wire.params import params_from_proto, params_to_proto

KNOWN = [field.name for field in pb.TransferParams.DESCRIPTOR.fields]
any_text = st.text(max_size=8)  # with lone surrogates, as JSON may name them
clean_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.integers() | st.sampled_from([2**32 - 1, 2**32, 2**53 + 1, 2**64 - 1, 2**64, -1])
scalars = st.none() | st.booleans() | numbers | st.floats(allow_nan=False) | any_text
block_lists = st.lists(st.lists(st.integers(-1, 2**32), max_size=4), max_size=3)
values = st.recursive(
    scalars | block_lists,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(KNOWN) | clean_text | clean_text.map(lambda text: f"_{text}")
params = st.dictionaries(keys, values, max_size=8)


def as_json(value: object) -> str:
    """Tells 1 from True and from 1.0, which == does not."""
    return json.dumps(value, sort_keys=True)


@given(params)
def test_scenario_13_nothing_is_lost_but_what_is_private(sent: dict[str, Any]) -> None:
    wire = params_to_proto(sent).SerializeToString()
    received = params_from_proto(pb.TransferParams.FromString(wire))
    assert as_json(received) == as_json(without_private(sent))


@given(params)
def test_what_does_not_fit_a_field_travels_as_json(sent: dict[str, Any]) -> None:
    message = params_to_proto(sent)
    for key, text in message.extra_json.items():
        assert as_json(json.loads(text)) == as_json(sent[key])
        assert key in without_private(sent)
