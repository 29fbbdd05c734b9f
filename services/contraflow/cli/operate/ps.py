"""``contraflow ps``: the engines of the fleet."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from contraflow.cli.operate.fleet import all_engines, attached_engines
from contraflow.cli.operate.options import directory_option, json_option, router_option
from contraflow.cli.operate.output import counted, enum_name, print_json, print_table, span
from contraflow.cli.operate.servers import (
    DEADLINE_SECONDS,
    OperatorError,
    Server,
    Servers,
    ask,
)
from contraflow.v1 import agent_service_pb2, engine_pb2, router_service_pb2
from contraflow.wire.convert import seconds

_COLUMNS = (
    "ENGINE", "ROLE", "ENDPOINT", "RANK#", "STATE", "MODEL", "CLASS", "BLOCKS#", "HANDLES#",
    "PULLS",
)  # fmt: skip


@click.command()
@directory_option
@router_option
@json_option
def ps(directory: Server, router: Server, as_json: bool) -> None:
    """List the engines, what their agents say of them, and how old the router's view is.

    STATE is serving, draining, unattached (the engine has no link to its agent: nothing can be
    pulled from it) or agent unreachable. HANDLES are pinned now; PULLS are counted since the
    engine's agent started.

    \b
    Examples:
      contraflow ps
      contraflow ps --directory 10.0.0.21:7400 --router 10.0.0.31:7420
      contraflow ps --json
    """
    with Servers() as servers:
        engines = all_engines(servers, directory)
        agents = attached_engines(servers, engines)
        rows = [_row(one, agents[one.agent_address]) for one in engines]
        view = _view(servers, router)
    if as_json:
        print_json({"engines": rows, "view": view})
        return
    if rows:
        print_table(_COLUMNS, map(_cells, rows))
    click.echo(_summary(len(rows), directory, router, view))


def _row(
    engine: engine_pb2.Engine, attached: dict[str, agent_service_pb2.AttachedEngine] | None
) -> dict[str, Any]:
    told = None if attached is None else attached.get(engine.engine_id)
    draining = engine.draining or (told is not None and told.engine.draining)
    if attached is None:
        state = "agent unreachable"
    elif told is None:
        state = "unattached"
    else:
        state = "draining" if draining else "serving"
    return {
        "engine_id": engine.engine_id,
        "role": enum_name(engine_pb2.EngineRole, engine.role, "ENGINE_ROLE_").lower(),
        "endpoint": engine.endpoint,
        "dp_rank": engine.dp_rank,
        "state": state,
        "draining": draining,
        "served_models": list(engine.served_models),
        "compatibility_class": engine.compatibility_class,
        "bidirectional": engine.bidirectional,
        "num_blocks": engine.num_blocks,
        "block_size": engine.block_size,
        "retained_handles": told.retained_handles if told else None,
        "pulls": dict(sorted(told.pulls.items())) if told else None,
        "agent_address": engine.agent_address,
        "vllm_version": engine.vllm_version,
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    pulls = row["pulls"] or {}
    return (
        row["engine_id"],
        row["role"],
        row["endpoint"],
        str(row["dp_rank"]),
        row["state"],
        ", ".join(row["served_models"]),
        row["compatibility_class"],
        f"{row['num_blocks']:,}",
        "?" if row["retained_handles"] is None else f"{row['retained_handles']:,}",
        ", ".join(f"{count} {outcome.lower()}" for outcome, count in pulls.items()) or "-",
    )


def _view(servers: Servers, router: Server) -> dict[str, Any] | None:
    """What the router knows; None if it does not answer, which is no error here."""
    call = servers.router(router).ListViewEngines
    request = router_service_pb2.ListViewEnginesRequest()
    try:
        view = ask(router, partial(call, request, timeout=DEADLINE_SECONDS))
    except OperatorError:
        return None
    return {
        "router": router.target,
        "engines": len(view.engines),
        "revision": view.revision,
        "age_seconds": seconds(view.age),
    }


def _summary(engines: int, directory: Server, router: Server, view: dict[str, Any] | None) -> str:
    known = f"{counted(engines, 'engine')} in the {directory}"
    if not engines:
        known += " (an engine is listed once its agent has registered it)"
    if view is None:
        return f"{known}; no answer from the {router}"
    return f"{known}; the {router} knows {view['engines']}, heard {span(view['age_seconds'])} ago"
