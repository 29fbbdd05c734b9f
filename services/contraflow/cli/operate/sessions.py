"""``contraflow sessions``: where the newest handle of each conversation lives."""

from __future__ import annotations

import click

from contraflow.cli.operate.fleet import all_engines, all_sessions, pick_engine
from contraflow.cli.operate.options import directory_option, json_option
from contraflow.cli.operate.output import counted, print_json, print_table, span
from contraflow.cli.operate.servers import Server, Servers
from contraflow.wire.convert import seconds

_COLUMNS = ("SESSION", "ENGINE", "TOKENS#", "BRANCHES#", "LEASE LEFT#", "HANDLE")


@click.command()
@click.option("--engine", metavar="ENGINE", help="Only those at home there: id, prefix, endpoint.")
@directory_option
@json_option
def sessions(engine: str | None, directory: Server, as_json: bool) -> None:
    """List the sessions that the directory knows, newest lease first.

    A session is shown by its key: ids of clients are known to nobody but their routers.

    \b
    Examples:
      contraflow sessions
      contraflow sessions --engine http://10.0.0.5:8100
      contraflow sessions --json
    """
    with Servers() as servers:
        found = all_sessions(servers, directory)
        if engine is not None:
            home = pick_engine(all_engines(servers, directory), engine)
            found = [one for one in found if one.engine_id == home.engine_id]
    found.sort(key=lambda one: (-seconds(one.ttl), one.session_key))
    if as_json:
        rows = [
            {
                "session_key": one.session_key,
                "engine_id": one.engine_id,
                "handle_id": one.handle_id,
                "num_tokens": one.num_tokens,
                "branches": one.branches,
                "implicit": one.message_digest == one.session_key,
                "ttl_seconds": seconds(one.ttl),
                "agent_address": one.agent_address,
            }
            for one in found
        ]
        print_json({"sessions": rows})
        return
    if found:
        print_table(
            _COLUMNS,
            (
                (
                    one.session_key, one.engine_id, f"{one.num_tokens:,}", str(one.branches),
                    span(seconds(one.ttl)), one.handle_id,
                )
                for one in found
            ),
        )  # fmt: skip
    click.echo(f"{counted(len(found), 'session')} in the {directory}")
