"""``contraflow drain``: take an engine out of service, or put it back."""

from __future__ import annotations

import time
from functools import partial

import click

from contraflow.cli.operate.fleet import all_engines, attached_engines, pick_engine
from contraflow.cli.operate.options import directory_option, json_option
from contraflow.cli.operate.output import counted, note, print_json
from contraflow.cli.operate.servers import (
    DEADLINE_SECONDS,
    OperatorError,
    Server,
    Servers,
    ask,
)
from contraflow.v1 import agent_service_pb2, engine_pb2

POLL_SECONDS = 1.0


@click.command()
@click.argument("engine", metavar="ENGINE")
@click.option("--undo", is_flag=True, help="Put it back into service.")
@click.option("--release", is_flag=True, help="Free what it retains: their next turns recompute.")
@click.option("--wait", is_flag=True, help="Return when it holds no handle any more.")
@directory_option
@json_option
def drain(
    engine: str, undo: bool, release: bool, wait: bool, directory: Server, as_json: bool
) -> None:
    """Take an engine out of service for new turns, or put it back.

    Turns that run go on, and what the engine retains may be pulled until it expires, unless it
    is released. ENGINE is an id, a prefix of just one id, or an endpoint. It holds for this
    start of the engine.

    \b
    Examples:
      contraflow drain decode-1
      contraflow drain http://10.0.0.5:8100 --wait
      contraflow drain decode-1 --release --wait
      contraflow drain decode-1 --undo
    """
    if undo and (wait or release):
        raise click.UsageError("--wait and --release go with a drain, not with --undo.")
    with Servers() as servers:
        known = pick_engine(all_engines(servers, directory), engine)
        agent = Server("agent", known.agent_address)
        request = agent_service_pb2.DrainEngineRequest(
            engine_id=known.engine_id, draining=not undo, release_handles=release
        )
        call = servers.agent(agent.target).DrainEngine
        drained = ask(agent, partial(call, request, timeout=DEADLINE_SECONDS)).engine
        left = _wait(servers, known) if wait else _retained(servers, known)
    if as_json:
        print_json(
            {
                "engine_id": drained.engine_id,
                "draining": drained.draining,
                "retained_handles": left,
            }
        )
    elif undo:
        click.echo(f"{drained.engine_id} takes new turns again")
    elif left:
        click.echo(
            f"{drained.engine_id} takes no new turns; {counted(left, 'handle')} may still be "
            "pulled from it"
        )
    else:
        click.echo(
            f"{drained.engine_id} takes no new turns and holds no handle: once no turn runs there "
            "it may be stopped"
        )


def _wait(servers: Servers, engine: engine_pb2.Engine) -> int:
    told = 0
    while left := _retained(servers, engine):
        if left != told:
            note(f"{engine.engine_id}: {counted(left, 'handle')} left")
            told = left
        time.sleep(POLL_SECONDS)
    return 0


def _retained(servers: Servers, engine: engine_pb2.Engine) -> int:
    attached = attached_engines(servers, [engine])[engine.agent_address]
    if attached is None or engine.engine_id not in attached:
        raise OperatorError(
            f"{engine.engine_id} has lost its link or its agent: what it holds is not known; "
            "`contraflow ps` shows when it is back"
        )
    return attached[engine.engine_id].retained_handles
