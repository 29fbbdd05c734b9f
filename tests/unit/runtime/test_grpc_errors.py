"""The one table of errors is complete, and its inverse is one."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from contraflow.core import errors
from contraflow.core.errors import ContraflowError, Internal, InvalidArgument, Reason, by_reason
from contraflow.runtime import grpc_errors
from contraflow.runtime.grpc_errors import (
    STATUS_CODES,
    CallFailed,
    TimedOut,
    Unreachable,
    from_item_status,
    from_rpc_error,
    item_status,
    to_status,
)
from contraflow.v1 import errors_pb2
from contraflow.wire.errors import reason_from_proto, reason_to_proto

REASONS = list(Reason)
PROTO = Path(__file__).parents[3] / "proto/contraflow/v1"


def rpc_error(error: ContraflowError) -> AioRpcError:
    status = to_status(error)
    trailing = Metadata((grpc_errors.DETAILS_KEY, status.SerializeToString()))
    return AioRpcError(STATUS_CODES[error.reason], Metadata(), trailing, status.message)


def bare_error(code: grpc.StatusCode) -> AioRpcError:
    return AioRpcError(code, Metadata(), Metadata(), "details")


def test_every_reason_has_exactly_one_type() -> None:
    types = [cls for cls in ContraflowError.__subclasses__() if cls.__module__ == errors.__name__]
    assert sorted(cls.reason for cls in types) == sorted(Reason)


def test_every_reason_has_one_status_code() -> None:
    assert set(STATUS_CODES) == set(Reason)


def test_every_reason_has_one_proto_value() -> None:
    names = {name.removeprefix("ERROR_REASON_") for name in dict(errors_pb2.ErrorReason.items())}
    assert names == {*Reason, "UNSPECIFIED"}


@pytest.mark.parametrize("file", sorted(PROTO.glob("*_service.proto")), ids=lambda p: p.stem)
def test_the_comments_of_the_rpcs_name_the_codes_of_the_table(file: Path) -> None:
    comments = " ".join(line.strip(" /\n") for line in file.read_text().splitlines())
    for code, reasons in re.findall(r"([A-Z_]+) \(([A-Z_, ]+)\)", comments):
        for reason in reasons.split(","):
            assert STATUS_CODES[Reason(reason.strip())].name == code


@pytest.mark.parametrize("reason", REASONS)
def test_reasons_travel_as_enum_values(reason: Reason) -> None:
    assert reason_from_proto(reason_to_proto(reason)) is reason


def test_unknown_enum_values_are_internal() -> None:
    assert reason_from_proto(0) is Reason.INTERNAL
    assert reason_from_proto(9999) is Reason.INTERNAL


@pytest.mark.parametrize("reason", REASONS)
def test_errors_travel_as_statuses(reason: Reason) -> None:
    error = by_reason()[reason]("one sentence", field="name")
    back = from_rpc_error(rpc_error(error))
    assert type(back) is type(error)
    assert str(back) == "one sentence"
    assert back.metadata["field"] == "name"


@pytest.mark.parametrize("reason", REASONS)
def test_errors_travel_as_item_statuses(reason: Reason) -> None:
    back = from_item_status(item_status(by_reason()[reason]("one sentence")))
    assert type(back) is by_reason()[reason]
    assert str(back) == "one sentence"


def test_success_travels_as_item_status() -> None:
    assert from_item_status(item_status(None)) is None


def test_overloaded_says_when_to_come_back() -> None:
    back = from_rpc_error(rpc_error(errors.Overloaded("busy", retry_after_seconds="2.5")))
    assert back.metadata[grpc_errors.RETRY_AFTER] == "2.5"


def test_a_status_without_our_details_is_a_failed_call() -> None:
    kinds = {
        grpc.StatusCode.UNAVAILABLE: Unreachable,
        grpc.StatusCode.DEADLINE_EXCEEDED: TimedOut,
        grpc.StatusCode.UNIMPLEMENTED: CallFailed,
    }
    for code, kind in kinds.items():
        error = from_rpc_error(bare_error(code))
        assert type(error) is kind
        assert isinstance(error, CallFailed)
        assert isinstance(error, Internal)
        assert error.code is code


def test_a_status_fits_into_a_header() -> None:
    error = InvalidArgument("m" * 100_000, field="f" * 100_000)
    assert to_status(error).ByteSize() < 2_000
