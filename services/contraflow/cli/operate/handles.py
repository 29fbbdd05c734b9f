"""``contraflow handles``: what engines retain, now or as it changes."""

from __future__ import annotations

import json
from typing import Any

import click

from contraflow.cli.operate.fleet import all_engines, handles_of, pick_engine, session_key_of
from contraflow.cli.operate.options import (
    directory_option,
    json_option,
    router_option,
    tenant_option,
)
from contraflow.cli.operate.output import (
    counted,
    enum_name,
    note,
    print_json,
    print_table,
    span,
)
from contraflow.cli.operate.servers import Server, Servers
from contraflow.cli.operate.watch import follow_handles
from contraflow.v1 import handle_pb2
from contraflow.wire.convert import seconds

_COLUMNS = (
    "HANDLE", "STATE", "SESSION", "TENANT", "TOKENS#", "BLOCKS#", "AGE#", "LEASE LEFT#", "CLAIM",
)  # fmt: skip


@click.command()
@click.option("--session", metavar="KEY|ID", help="Only of this session.")
@click.option("--engine", metavar="ENGINE", help="Only of this engine: id, prefix, endpoint.")
@click.option("--watch", is_flag=True, help="Then follow the changes until Ctrl-C.")
@tenant_option
@directory_option
@router_option
@json_option
def handles(
    session: str | None, engine: str | None, watch: bool, tenant: str,
    directory: Server, router: Server, as_json: bool,
) -> None:  # fmt: skip
    """List the handles that all agents know of their engines.

    A session is named by its key, 32 hex digits, or by the id that the client sends: a router
    knows the key of an id. With --watch and --json, one document a line.

    \b
    Examples:
      contraflow handles
      contraflow handles --session my-conversation --tenant acme
      contraflow handles --engine decode-1 --watch
    """
    with Servers() as servers:
        key = "" if session is None else session_key_of(servers, router, tenant, session)
        engines = all_engines(servers, directory)
        if engine is not None:
            engines = [pick_engine(engines, engine)]
        if watch:
            show = _show_json if as_json else _show_line
            follow_handles(servers, engines, key, show)
            return
        listed = handles_of(servers, engines, key)
    if as_json:
        rows = [describe(one) for one in listed.found]
        print_json(
            {
                "handles": rows,
                "unreachable_agents": listed.unreachable,
                "unattached_engines": listed.unattached,
            }
        )
        return
    if listed.found:
        print_table(_COLUMNS, map(_cells, listed.found))
    asked = counted(len(engines), "engine")
    click.echo(f"{counted(len(listed.found), 'handle')} of {asked} in the {directory}")
    for gap in listed.gaps():
        note(f"{gap}: its handles are not shown")


def describe(handle: handle_pb2.Handle) -> dict[str, Any]:
    """A handle as JSON has it."""
    return {
        "handle_id": handle.handle_id,
        "engine_id": handle.engine_id,
        "state": _state(handle),
        "session_key": handle.session_key,
        "tenant": handle.tenant,
        "num_tokens": handle.num_tokens,
        "num_blocks": handle.num_blocks,
        "age_seconds": seconds(handle.age),
        "ttl_seconds": seconds(handle.ttl),
        "claim_id": handle.claim_id,
        "turn_id": handle.turn_id,
    }


def _cells(handle: handle_pb2.Handle) -> tuple[str, ...]:
    return (
        handle.handle_id,
        _state(handle),
        handle.session_key,
        handle.tenant,
        f"{handle.num_tokens:,}",
        f"{handle.num_blocks:,}",
        span(seconds(handle.age)),
        span(seconds(handle.ttl)),
        handle.claim_id or "-",
    )


def _state(handle: handle_pb2.Handle) -> str:
    return enum_name(handle_pb2.HandleState, handle.state, "HANDLE_STATE_")


def _show_json(handle: handle_pb2.Handle) -> None:
    click.echo(json.dumps(describe(handle)))


def _show_line(handle: handle_pb2.Handle) -> None:
    claim = f"  claim {handle.claim_id}" if handle.claim_id else ""
    click.echo(
        f"{_state(handle):<8}  {handle.handle_id}  session {handle.session_key}  "
        f"{counted(handle.num_tokens, 'token')}  {span(seconds(handle.ttl))} left{claim}"
    )
