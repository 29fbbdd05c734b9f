"""Paths of the front door, and the answers that need no engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from contraflow.core.fleet import Role
from contraflow.router.generate_request import MESSAGES
from contraflow.router.messages_api import MessagesApi, MessagesError
from contraflow.router.metrics import RouterMetrics
from contraflow.router.planning import missing_roles, served_models
from contraflow.router.tenancy import Tenancy
from contraflow.router.turn import Turns
from contraflow.runtime.fleet_replica import FleetReplica
from contraflow.web import ApiError, Request, Responder

Endpoint = Callable[[Request, Responder], Awaitable[None]]


class Routes:
    """The handler of the HTTP server."""

    def __init__(
        self, turns: Turns, replica: FleetReplica, tenancy: Tenancy, metrics: RouterMetrics
    ) -> None:
        self._replica = replica
        self._tenancy = tenancy
        self._metrics = metrics
        self.draining = False
        self._endpoints: dict[str, tuple[str, Endpoint]] = {
            "/v1/chat/completions": ("POST", turns.serve),
            "/v1/completions": ("POST", turns.serve),
            MESSAGES: ("POST", MessagesApi(turns).serve),
            "/v1/models": ("GET", self._models),
            "/health": ("GET", self._health),
            "/metrics": ("GET", self._exposition),
        }

    async def handle(self, request: Request, responder: Responder) -> None:
        """Answer a request. ApiError is raised for the server to answer with."""
        try:
            method, endpoint = self._endpoints.get(request.path, ("", _not_found))
            if method and request.method != method and (request.method, method) != ("HEAD", "GET"):
                raise _wrong_method(method)
            await endpoint(request, responder)
        except ApiError as error:
            self._metrics.error(error.err_type)
            if request.path == MESSAGES:
                raise MessagesError(error) from error
            raise

    async def _models(self, request: Request, responder: Responder) -> None:
        self._tenancy.tenant_of(request.header(b"authorization"))
        names = served_models(self._replica.known())
        models = [
            {"id": name, "object": "model", "created": 0, "owned_by": "vllm", "root": root or name}
            for name, root in names.items()
        ]
        responder.send_json(200, {"object": "list", "data": models})

    async def _health(self, request: Request, responder: Responder) -> None:
        missing = missing_roles(self._replica.known())
        # Decode can do without prefill: a router without must not be taken out of service.
        able = Role.DECODE not in missing
        ready = self._replica.synced.is_set() and able and not self.draining
        state = {
            "status": "ok" if ready else "unavailable",
            "missing": missing,
            "directory": "followed" if self._replica.synced.is_set() else "not heard yet",
            "draining": self.draining,
        }
        responder.send_json(200 if ready else 503, state)

    async def _exposition(self, request: Request, responder: Responder) -> None:
        self._metrics.view_engines.set(len(self._replica.engines))
        self._metrics.view_sessions.set(len(self._replica.sessions))
        self._metrics.view_age.set(self._replica.age())
        content_type = (b"content-type", CONTENT_TYPE_LATEST.encode())
        responder.respond(200, [content_type], generate_latest(self._metrics.registry))


async def _not_found(request: Request, responder: Responder) -> None:
    raise ApiError(404, "Not Found")


def _wrong_method(allowed: str) -> ApiError:
    return ApiError(405, "Method Not Allowed", headers=((b"allow", allowed.encode()),))
