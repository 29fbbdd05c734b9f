"""Protobuf messages as a stranger may send them: any value in any field, and no message at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor, OneofDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

Values = Mapping[str, st.SearchStrategy[Any]]
"""Strategies of field names, in place of those of their types; for some values among others."""

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
texts = text | st.sampled_from(["", "\x00", "x" * 513, "x" * 5000, "é" * 2000, "a/b", "/", "%%%"])
_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_FLOATS = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)
_DEEPEST = 4


def _integers(kind: int) -> st.SearchStrategy[int]:
    low, high = _INTEGERS[kind]
    small = st.integers(max(low, -1), 8)
    return small | st.integers(low, high) | st.sampled_from([low, high])


def _single(field: FieldDescriptor, values: Values, depth: int) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        return fields(field.message_type, values, depth + 1)
    known = _of_type(field)
    return values[field.name] | known if field.name in values else known


def _of_type(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return st.binary(max_size=40) if field.type == FieldDescriptor.TYPE_BYTES else texts
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    return st.floats() if kind in _FLOATS else _integers(kind)


def _values(field: FieldDescriptor, values: Values, depth: int) -> st.SearchStrategy[Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        entries = _single(key, values, depth), _single(value, values, depth)
        return st.dictionaries(*entries, max_size=3)
    if field.is_repeated:
        return st.lists(_single(field, values, depth), max_size=3)
    return _single(field, values, depth)


@st.composite
def fields(draw: st.DrawFn, descriptor: Descriptor, values: Values, depth: int = 0) -> Any:
    """Arguments for a message's constructor, each field there or not."""
    if depth > _DEEPEST:
        return {}
    chosen = [one for one in descriptor.fields if not _in_oneof(one) and draw(st.booleans())]
    chosen += [draw(st.sampled_from(list(one.fields))) for one in _oneofs(descriptor)]
    return {one.name: draw(_values(one, values, depth)) for one in chosen}


def _oneofs(descriptor: Descriptor) -> list[OneofDescriptor]:
    return [one for one in descriptor.oneofs if len(one.fields) > 1]


def _in_oneof(field: FieldDescriptor) -> bool:
    return field.containing_oneof is not None and len(field.containing_oneof.fields) > 1


@st.composite
def altered(draw: st.DrawFn, seed: Message, values: Values) -> Message:
    """A valid message with up to four fields that are something else, or nothing."""
    message = type(seed)()
    message.CopyFrom(seed)
    for _ in range(draw(st.integers(0, 4))):
        target, field = draw(st.sampled_from(list(_places(message))))
        target.ClearField(field.name)
        if draw(st.integers(0, 3)):
            value = draw(_values(field, values, 0))
            target.MergeFrom(type(target)(**{field.name: value}))
    return message


def _places(message: Any) -> Iterator[tuple[Any, FieldDescriptor]]:
    """All fields of a message and of those in it."""
    for field in message.DESCRIPTOR.fields:
        yield message, field
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        if field.is_repeated:
            for inner in getattr(message, field.name):
                yield from _places(inner)
        elif message.HasField(field.name):
            yield from _places(getattr(message, field.name))


# A field of the number 1000, of each wire type, which no message of ours has.
_UNKNOWN = (b"\xc0\x3e\x07", b"\xc1\x3e" + bytes(8), b"\xc2\x3e\x02hi", b"\xc5\x3e" + bytes(4))


@st.composite
def sent(
    draw: st.DrawFn, descriptor: Descriptor, values: Values, seeds: Sequence[Message] = ()
) -> bytes:
    """The bytes of a message, with fields that nobody knows, or of none. ``seeds`` are valid
    messages, of this kind some of them."""
    how = draw(st.integers(0, 9))
    if how == 0:
        return draw(st.binary(min_size=1, max_size=60))
    ours = [seed for seed in seeds if seed.DESCRIPTOR.full_name == descriptor.full_name]
    if ours and how > 3:
        message = draw(altered(draw(st.sampled_from(ours)), values))
    else:
        message = GetMessageClass(descriptor)(**draw(fields(descriptor, values)))
    unknown = draw(st.lists(st.sampled_from(_UNKNOWN), max_size=2))
    return message.SerializeToString() + b"".join(unknown)
