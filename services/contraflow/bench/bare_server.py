"""A gRPC server that answers each unary call with what it got: ``python -m`` this module.

Prints its port, and ends with its standard input: nothing of ours is measured with it.
"""

from __future__ import annotations

import asyncio
import sys

import grpc

METHOD = "/contraflow.bench.Bare/Call"


class _Bare(grpc.GenericRpcHandler):
    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        return grpc.unary_unary_rpc_method_handler(_answer)


async def _answer(request: bytes, context: object) -> bytes:
    return request


async def serve() -> None:
    """Until standard input is closed."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Bare(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(serve())
