"""What commands read of the fleet: engines and sessions of the directory, handles of agents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import grpc

from contraflow.cli.operate.servers import (
    DEADLINE_SECONDS,
    OperatorError,
    Server,
    Servers,
    ask,
    asking,
    credentials,
    each_agent,
    in_words,
)
from contraflow.core.errors import ContraflowError, NoEligibleEngine
from contraflow.core.session import is_session_key
from contraflow.v1 import agent_service_pb2 as agent_pb
from contraflow.v1 import directory_service_pb2 as directory_pb
from contraflow.v1 import engine_pb2, handle_pb2, router_service_pb2, session_pb2

PageT = TypeVar("PageT", bound="_Page")


@dataclass(frozen=True, slots=True)
class Handles:
    """Handles by id, the agents that could not be asked for theirs, and the engines whose
    agents do not know them now."""

    found: list[handle_pb2.Handle] = field(default_factory=list)
    unreachable: list[str] = field(default_factory=list)
    unattached: list[str] = field(default_factory=list)

    def gaps(self) -> list[str]:
        """Whose handles are missing, and why, in words."""
        return [
            *(f"no answer from the agent at {one}" for one in self.unreachable),
            *(f"{one} is not attached to its agent" for one in self.unattached),
        ]


def all_engines(servers: Servers, directory: Server) -> list[engine_pb2.Engine]:
    """The engines that the directory knows, by id. Raises OperatorError."""
    stub = servers.directory(directory)

    def fetch(token: str) -> directory_pb.ListEnginesResponse:
        request = directory_pb.ListEnginesRequest(page_token=token)
        return stub.ListEngines(request, timeout=DEADLINE_SECONDS)

    return [engine for page in _pages(directory, fetch) for engine in page.engines]


def all_sessions(servers: Servers, directory: Server) -> list[session_pb2.Session]:
    """The sessions that the directory knows, by key. Raises OperatorError."""
    stub = servers.directory(directory)

    def fetch(token: str) -> directory_pb.ListSessionsResponse:
        request = directory_pb.ListSessionsRequest(page_token=token)
        return stub.ListSessions(request, timeout=DEADLINE_SECONDS)

    return [session for page in _pages(directory, fetch) for session in page.sessions]


def attached_engines(
    servers: Servers, engines: Iterable[engine_pb2.Engine]
) -> dict[str, dict[str, agent_pb.AttachedEngine] | None]:
    """By agent address, then by engine id; None of an agent that does not answer."""
    request = agent_pb.ListAttachedEnginesRequest()

    def call(target: str) -> grpc.Future[agent_pb.ListAttachedEnginesResponse]:
        stub = servers.agent(target)
        return stub.ListAttachedEngines.future(request, timeout=DEADLINE_SECONDS)

    answers = each_agent({one.agent_address for one in engines}, call)
    return {
        target: None if answer is None else {one.engine.engine_id: one for one in answer.engines}
        for target, answer in answers.items()
    }


def handles_of(
    servers: Servers, engines: Iterable[engine_pb2.Engine], session_key: str = ""
) -> Handles:
    """Handles of just these engines, by id. Raises OperatorError for a malformed key."""
    wanted = {one.engine_id: one.agent_address for one in engines}
    found, unreachable, unattached = list[handle_pb2.Handle](), set[str](), set[str]()
    tokens = dict.fromkeys(wanted.values(), "")

    def call(target: str) -> grpc.Future[agent_pb.ListHandlesResponse]:
        request = agent_pb.ListHandlesRequest(page_token=tokens[target], session_key=session_key)
        return servers.agent(target).ListHandles.future(request, timeout=DEADLINE_SECONDS)

    while tokens:
        pages = each_agent(tokens, call)
        tokens = {}
        for target, page in pages.items():
            if page is None:
                unreachable.add(target)
                continue
            found += (one for one in page.handles if wanted.get(one.engine_id) == target)
            theirs = (engine_id for engine_id, agent in wanted.items() if agent == target)
            unattached.update(one for one in theirs if one not in page.engine_ids)
            if page.next_page_token:
                tokens[target] = page.next_page_token
    found.sort(key=lambda one: one.handle_id)
    return Handles(found, sorted(unreachable), sorted(unattached))


def pick_engine(engines: Sequence[engine_pb2.Engine], name: str) -> engine_pb2.Engine:
    """The engine that ``name`` means: its id, a prefix of just one id, or its endpoint.

    Raises OperatorError.
    """
    exact = [one for one in engines if one.engine_id == name]
    by_prefix = [one for one in engines if name and one.engine_id.startswith(name)]
    by_endpoint = [one for one in engines if name in (one.endpoint, _place(one.endpoint))]
    found = exact or by_endpoint or by_prefix
    if len(found) == 1:
        return found[0]
    if not found:
        raise OperatorError(f"no engine is called {name!r}: `contraflow ps` shows all ids")
    ids = ", ".join(one.engine_id for one in found[:5]) + (", …" if len(found) > 5 else "")
    raise OperatorError(f"{name!r} may be any of {len(found)} engines: name one of {ids}")


def session_key_of(servers: Servers, router: Server, tenant: str, session: str) -> str:
    """The key of a session that is named by key or by a client's id; a router makes the one of
    the other. Raises OperatorError."""
    if is_session_key(session):
        return session
    request = router_service_pb2.PlanTurnRequest(tenant=tenant, session_id=session)
    call = servers.router(router).PlanTurn
    by_key = "name the session by its key, which `contraflow sessions` shows"
    try:
        with asking(router):
            plan = call(request, timeout=DEADLINE_SECONDS, metadata=credentials())
    except NoEligibleEngine as error:
        raise OperatorError(f"the {router} plans no turns now ({error}): {by_key}") from error
    except ContraflowError as error:
        raise in_words(error, router) from error
    if not plan.session_key:
        raise OperatorError(f"the {router} tells no session keys: {by_key}")
    return plan.session_key


def _place(endpoint: str) -> str:
    return endpoint.partition("://")[2].rstrip("/")


class _Page(Protocol):
    next_page_token: str


def _pages(server: Server, fetch: Callable[[str], PageT]) -> Iterator[PageT]:
    token = ""
    while True:
        page = ask(server, partial(fetch, token))
        yield page
        if not (token := page.next_page_token):
            return
