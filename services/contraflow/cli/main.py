"""``contraflow``: the services, and a deployment of all of them on this machine."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import click

import contraflow

_CONFIG = click.option(
    "--config",
    "config",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Configuration in TOML.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(contraflow.__version__, prog_name="contraflow")
def main() -> None:
    """Control plane for bidirectional KV cache transfer between vLLM engines.

    \b
    Examples:
      contraflow demo                          five turns on real engines, and the proof
      contraflow up --port 8000                keep a deployment running for OpenAI clients
      contraflow router --config router.toml   one service of a cluster

    Exit status: 0 on success, 1 if something failed, 2 for wrong usage or configuration.
    """


@main.command()
@_CONFIG
def directory(config: Path) -> None:
    """Serve the directory: what the fleet knows of engines and sessions, kept in etcd.

    \b
    Example:
      contraflow directory --config /etc/contraflow/directory.toml
    """
    _serve("directory", config)


@main.command()
@_CONFIG
def agent(config: Path) -> None:
    """Serve the agent of a node, beside its vLLM engines.

    \b
    Example:
      contraflow agent --config /etc/contraflow/agent.toml
    """
    _serve("agent", config)


@main.command()
@_CONFIG
def router(config: Path) -> None:
    """Serve a router: the OpenAI front door.

    \b
    Example:
      contraflow router --config /etc/contraflow/router.toml
    """
    _serve("router", config)


@main.command()
@click.option(
    "--port", type=click.IntRange(1, 65535), metavar="N",
    help="Port of the first router; a random free one by default.",
)  # fmt: skip
@click.option(
    "--routers", type=click.IntRange(1, 16), default=1, show_default=True, metavar="N",
    help="How many routers.",
)  # fmt: skip
def up(port: int | None, routers: int) -> None:
    """Run a whole deployment on this machine until Ctrl-C.

    Real vLLM engines, one prefill and one decode, on CPU cores with a tiny random model; etcd,
    directory, agent and routers in front. Any OpenAI client can talk to it.

    \b
    Examples:
      contraflow up
      contraflow up --port 8000 --routers 2
    """
    from contraflow.cli.up import run

    sys.exit(run(port=port, routers=routers))


@main.command()
def demo() -> None:
    """Run a five-turn agent conversation on real engines and prove that KV is pulled back.

    Fails if a figure differs from the engines' own metrics, or a token from a plain engine's.

    \b
    Example:
      contraflow demo
    """
    from contraflow.cli.demo.run import run

    sys.exit(run())


def _serve(service: str, config: Path) -> None:
    # Imported here: a service loads neither the others' libraries nor the deployment's.
    sys.exit(import_module(f"contraflow.{service}.main").run(config))


if __name__ == "__main__":
    main()
