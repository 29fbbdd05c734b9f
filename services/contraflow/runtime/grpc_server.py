"""A grpc.aio server as every Contraflow process has it: errors as statuses, health,
reflection (v1 and v1alpha), server info."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

import contraflow
from contraflow.runtime.address import Address
from contraflow.runtime.config import ConfigError, PortInUse
from contraflow.runtime.grpc_interceptor import Context, ErrorInterceptor, without_trace
from contraflow.v1 import server_info_service_pb2 as info_pb2
from contraflow.v1 import server_info_service_pb2_grpc as info_pb2_grpc

ServicerT = TypeVar("ServicerT")

_INFO_SERVICE = "contraflow.v1.ServerInfoService"
_GRPC_LOGGER = "grpc._cython.cygrpc"
_REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the server enforces, as GetServerInfo tells it. Zero: no limit of that kind."""

    max_message_bytes: int = 4 * 1024 * 1024
    max_batch_items: int = 0
    max_page_size: int = 0
    max_chain_length: int = 0


class _ServerInfoServicer(info_pb2_grpc.ServerInfoServiceServicer):
    def __init__(self, response: info_pb2.GetServerInfoResponse) -> None:
        self._response = response

    async def GetServerInfo(
        self, request: info_pb2.GetServerInfoRequest, context: Context
    ) -> info_pb2.GetServerInfoResponse:
        return self._response


class _Descriptors:
    """The pool of all descriptors, which finds methods as well, for ``grpcurl describe``."""

    def __init__(self) -> None:
        self._pool = descriptor_pool.Default()

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            name, _, method = symbol.rpartition(".")
            service = self._pool.FindServiceByName(name)
            if method not in service.methods_by_name:
                raise
            return service.file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


class GrpcServer:
    """Made inside a running event loop. ``add`` services, ``listen``, ``start``, ``stop``."""

    def __init__(
        self, component: str, limits: Limits, features: Sequence[str] = (),
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:  # fmt: skip
        logging.getLogger(_GRPC_LOGGER).addFilter(without_trace)
        self._server = grpc.aio.server(
            interceptors=[ErrorInterceptor(), *interceptors],
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", limits.max_message_bytes),
                ("grpc.max_send_message_length", -1),
            ],
        )
        self._health = health.aio.HealthServicer()
        self._names = [_INFO_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME]
        info = info_pb2.GetServerInfoResponse(
            component=component,
            version=contraflow.__version__,
            features=features,
            limits=info_pb2.ServerLimits(
                max_message_bytes=limits.max_message_bytes,
                max_batch_items=limits.max_batch_items,
                max_page_size=limits.max_page_size,
                max_chain_length=limits.max_chain_length,
            ),
        )
        info_pb2_grpc.add_ServerInfoServiceServicer_to_server(
            _ServerInfoServicer(info), self._server
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    def add(
        self,
        register: Callable[[ServicerT, grpc.aio.Server], None],
        servicer: ServicerT,
        service: str,
    ) -> None:
        """Serve a servicer by its generated ``add_…_to_server``; ``service`` is the full name,
        for reflection and health."""
        register(servicer, self._server)
        self._names.append(service)

    def listen(self, address: Address) -> Address:
        """Bind; returns the address with the port that was bound (port 0: any free one).

        Raises ConfigError, PortInUse among them.
        """
        _require_bindable(address)
        try:
            port = self._server.add_insecure_port(str(address))
        except RuntimeError as error:
            raise ConfigError(f"can not listen on {address}") from error
        return address if address.unix_path else Address(host=address.host, port=port)

    async def start(self, *, serving: bool = True) -> None:
        """Accept calls. With ``serving`` false, health says NOT_SERVING until it is set."""
        self._serve_reflection()
        await self.set_serving(serving)
        await self._server.start()

    async def set_serving(self, serving: bool, service: str | None = None) -> None:
        """Set the health of one service, or of all and the server as a whole."""
        statuses = health_pb2.HealthCheckResponse
        status = statuses.SERVING if serving else statuses.NOT_SERVING
        for name in ["", *self._names] if service is None else [service]:
            await self._health.set(name, status)

    async def stop(self, grace_seconds: float) -> None:
        """Health turns NOT_SERVING, new calls are refused, open ones get ``grace_seconds``."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_seconds)

    def _serve_reflection(self) -> None:
        # grpcio-reflection knows v1alpha only; v1 has the same messages under another name.
        handler = grpc.stream_stream_rpc_method_handler(
            reflection.aio.ReflectionServicer(self._names, _Descriptors()).ServerReflectionInfo,
            request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        methods = {"ServerReflectionInfo": handler}
        self._server.add_generic_rpc_handlers(
            tuple(
                grpc.method_handlers_generic_handler(service, methods)
                for service in (_REFLECTION_V1, reflection.SERVICE_NAME)
            )
        )


def _require_bindable(address: Address) -> None:
    """Bind and let go: gRPC's own attempt would write to stderr and hide the cause."""
    try:
        if address.unix_path:
            _bind_unix(address)
        else:
            _bind_tcp(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(address) from error
        raise ConfigError(f"can not listen on {address}: {error.strerror or error}") from error


def _bind_unix(address: Address) -> None:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(address.unix_path)
        except (FileNotFoundError, ConnectionRefusedError):
            # Nobody there, or the file of a dead server, which gRPC replaces.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(address.unix_path)
        else:
            # gRPC would unlink the socket of the live server and so evict it silently.
            raise PortInUse(address)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.bind(address.unix_path)
    os.unlink(address.unix_path)


def _bind_tcp(address: Address) -> None:
    family, kind, _, _, name = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(name)
