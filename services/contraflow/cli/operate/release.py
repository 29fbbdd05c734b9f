"""``contraflow release``: free retained handles unread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import click

from contraflow.cli.operate.fleet import (
    Handles,
    all_engines,
    handles_of,
    pick_engine,
    session_key_of,
)
from contraflow.cli.operate.options import (
    directory_option,
    json_option,
    router_option,
    tenant_option,
)
from contraflow.cli.operate.output import counted, note, print_json, print_table
from contraflow.cli.operate.servers import (
    DEADLINE_SECONDS,
    OperatorError,
    Server,
    Servers,
    ask,
)
from contraflow.v1 import agent_service_pb2, engine_pb2

_BATCH = 500  # of an agent's 1000

FREED = "freed"
CLAIMED = "left: claimed"
GONE = "gone already"
UNKNOWN = "left: no such engine"
NOT_REACHED = "left: engine not reached"


@click.command()
@click.argument("handle_ids", metavar="[HANDLE]...", nargs=-1)
@click.option("--session", metavar="KEY|ID", help="All handles of this session.")
@click.option("--engine", metavar="ENGINE", help="All handles of this engine; asks first.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@tenant_option
@directory_option
@router_option
@json_option
def release(
    handle_ids: tuple[str, ...], session: str | None, engine: str | None, yes: bool, tenant: str,
    directory: Server, router: Server, as_json: bool,
) -> None:  # fmt: skip
    """Free handles that nobody has claimed: their next turns recompute.

    Claimed handles are left for now, for somebody may be reading them; they end with their claim.

    \b
    Examples:
      contraflow release decode-1/chatcmpl-42
      contraflow release --session my-conversation --tenant acme
      contraflow release --engine decode-1 --yes
    """
    if sum((bool(handle_ids), session is not None, engine is not None)) != 1:
        raise click.UsageError("Name handles, or --session, or --engine: one of the three.")
    for handle_id in handle_ids:
        if not all(handle_id.partition("/")):
            raise click.UsageError(f"{handle_id!r} is not a handle id, '<engine id>/<request id>'.")
    with Servers() as servers:
        key = "" if session is None else session_key_of(servers, router, tenant, session)
        engines = all_engines(servers, directory)
        if engine is not None:
            engines = [pick_engine(engines, engine)]
        wanted = handle_ids or _listed(handles_of(servers, engines, key))
        if engine is not None and wanted and not yes:
            _confirm(len(wanted), engines[0].engine_id)
        outcomes, failures = _release(servers, engines, wanted)
    if as_json:
        rows = [{"handle_id": one, "outcome": outcome} for one, outcome in outcomes.items()]
        print_json({"handles": rows})
    else:
        _show(outcomes)
    for failure in failures:
        raise failure


def _show(outcomes: dict[str, str]) -> None:
    if outcomes:
        print_table(("HANDLE", "OUTCOME"), outcomes.items())
    freed = sum(outcome == FREED for outcome in outcomes.values())
    click.echo(f"{counted(freed, 'handle')} freed, {len(outcomes) - freed} not")


def _listed(handles: Handles) -> tuple[str, ...]:
    for gap in handles.gaps():
        note(f"{gap}: its handles are left alone")
    return tuple(one.handle_id for one in handles.found)


def _confirm(count: int, engine_id: str) -> None:
    try:
        sure = click.confirm(f"Free {counted(count, 'handle')} of {engine_id}?", err=True)
    except click.Abort:
        sure = False
        note("")  # ends the line of the question
    if not sure:
        raise OperatorError("nothing was freed: answer y, or pass --yes")


def _release(
    servers: Servers, engines: Iterable[engine_pb2.Engine], handle_ids: Sequence[str]
) -> tuple[dict[str, str], list[OperatorError]]:
    """What became of each handle, and what went wrong with whole engines."""
    failures: list[OperatorError] = []
    engine_by_id = {one.engine_id: one for one in engines}
    outcomes = dict.fromkeys(handle_ids, UNKNOWN)
    by_engine: dict[str, list[str]] = {}
    for handle_id in outcomes:
        engine_id = handle_id.partition("/")[0]
        if engine_id in engine_by_id:
            by_engine.setdefault(engine_id, []).append(handle_id)
    for engine_id, ids in by_engine.items():
        engine = engine_by_id[engine_id]
        try:
            freed = set(_freed(servers, Server("agent", engine.agent_address), ids))
        except OperatorError as failure:
            failures.append(failure)
            outcomes.update(dict.fromkeys(ids, NOT_REACHED))
            continue
        kept = {one.handle_id for one in handles_of(servers, [engine]).found}
        for one in ids:
            outcomes[one] = FREED if one in freed else CLAIMED if one in kept else GONE
    return outcomes, failures


def _freed(servers: Servers, agent: Server, ids: list[str]) -> Iterator[str]:
    call = servers.agent(agent.target).ReleaseHandles
    for start in range(0, len(ids), _BATCH):
        request = agent_service_pb2.ReleaseHandlesRequest(handle_ids=ids[start : start + _BATCH])
        response = ask(agent, partial(call, request, timeout=DEADLINE_SECONDS))
        yield from response.released_handle_ids
