"""Calls of any method with any bytes, and what may become of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

from contraflow.core.errors import Reason
from contraflow.runtime.grpc_errors import STATUS_CODES, from_rpc_error
from tests.fuzz.messages import Values, sent

TIMEOUT = 30.0


@st.composite
def calls(
    draw: st.DrawFn, service: ServiceDescriptor, values: Values, seeds: Sequence[Message] = ()
) -> tuple[MethodDescriptor, bytes]:
    """A method and what it is called with; ``seeds`` are valid requests."""
    method = draw(st.sampled_from(list(service.methods)))
    return method, draw(sent(method.input_type, values, seeds))


async def called(
    channel: grpc.aio.Channel, method: MethodDescriptor, request: bytes
) -> list[Any] | Reason:
    """The responses (of a watch just the first), or the reason of a typed refusal.

    AssertionError for any other end: a failure of ours, or a status without a reason.
    """
    path = f"/{method.containing_service.full_name}/{method.name}"
    read = GetMessageClass(method.output_type).FromString
    try:
        if method.server_streaming:
            call = channel.unary_stream(path, _as_it_is, read)(request, timeout=TIMEOUT)
            found = []
            async for response in call:
                found.append(response)
                if method.name.startswith("Watch"):
                    call.cancel()
                    break
            return found
        return [await channel.unary_unary(path, _as_it_is, read)(request, timeout=TIMEOUT)]
    except grpc.aio.AioRpcError as error:
        return reason_of(error)


def reason_of(error: grpc.aio.AioRpcError) -> Reason:
    """AssertionError unless it is typed, and no defect."""
    reason = from_rpc_error(error).reason
    assert reason is not Reason.INTERNAL, error
    assert error.code() is STATUS_CODES[reason], error
    return reason


def _as_it_is(data: bytes) -> bytes:
    return data
