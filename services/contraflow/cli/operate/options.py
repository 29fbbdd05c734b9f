"""Options that several commands share."""

from __future__ import annotations

import click

from contraflow.cli.operate.servers import Server
from contraflow.runtime.address import Address


def _server(context: click.Context, parameter: click.Parameter, value: str) -> Server:
    try:
        address = Address.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return Server(str(parameter.name), str(address))


directory_option = click.option(
    "--directory", envvar="CONTRAFLOW_DIRECTORY", default="127.0.0.1:7400", metavar="HOST:PORT",
    show_default=True, show_envvar=True, callback=_server, help="gRPC address of a directory.",
)  # fmt: skip
router_option = click.option(
    "--router", envvar="CONTRAFLOW_ROUTER", default="127.0.0.1:7420", metavar="HOST:PORT",
    show_default=True, show_envvar=True, callback=_server, help="gRPC address of a router.",
)  # fmt: skip
tenant_option = click.option(
    "--tenant", default="default", show_default=True, metavar="NAME",
    help="Whose session it is, where a session is named by its id.",
)  # fmt: skip
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
