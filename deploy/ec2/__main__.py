"""``python -m deploy.ec2``: the parts of the recipe that judge and write, run in the checkout."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path

import click
from deploy.ec2 import checks, compare, configure, counters, node
from deploy.ec2.checks import Finding
from deploy.ec2.models import MODELS
from deploy.ec2.outputs import environment

from contraflow.cli.bench.counters import Page, PageUnreadable, read_pages
from contraflow.cli.operate.output import print_table

_DEVICES = click.option(
    "--devices", type=click.IntRange(1), default=16, show_default=True, metavar="N",
    help="EFA devices of the node; a p5en.48xlarge has 16.",
)  # fmt: skip
_MODEL = click.option("--model", type=click.Choice(list(MODELS)), required=True)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _address(context: click.Context, parameter: click.Parameter, value: str) -> str:
    try:
        good = not ip_address(value).is_loopback
    except ValueError:
        good = False
    if not good:
        raise click.BadParameter(f"{value!r} is no private address of a node, such as 10.0.0.5")
    return value


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def commands() -> None:
    """Parts of the recipe of deploy/ec2. Exit status 1: refused; the lines say what to do."""


@commands.command("configure")
@click.argument("role", type=click.Choice(list(configure.PORTS)))
@_MODEL
@click.option("--prefill", required=True, callback=_address, metavar="IP", help="Prefill's node.")
@click.option("--decode", required=True, callback=_address, metavar="IP", help="Decode's node.")
@click.option("--models", default=configure.MODELS_FOLDER, show_default=True, metavar="FOLDER")
@click.option(
    "--into", type=click.Path(file_okay=False, path_type=Path), default="/etc/contraflow",
    show_default=True, metavar="FOLDER",
)  # fmt: skip
def write(role: str, model: str, prefill: str, decode: str, models: str, into: Path) -> None:
    """Write the files of /etc/contraflow for this node, over those that are there."""
    into.mkdir(parents=True, exist_ok=True)
    for name, text in configure.files(role, model, MODELS[model], prefill, decode, models).items():
        (into / name).write_text(text)
        click.echo(f"written: {into / name}")


@commands.command("stock")
@click.argument("role", type=click.Choice(list(configure.PORTS)))
def stock(role: str) -> None:
    """Print a drop-in that starts the role's engine with vLLM's own connector."""
    click.echo(configure.stock(role), nl=False)


@commands.command("check")
@click.option(
    "--env", "env_file", type=_FILE, default="/etc/contraflow/engine.env", show_default=True
)
@_DEVICES
@click.option(
    "--gpus", type=click.IntRange(0), default=8, show_default=True, metavar="N",
    help="H200 of the node; 0: any GPUs will do.",
)  # fmt: skip
def check(env_file: Path, devices: int, gpus: int) -> None:
    """Before the engine starts: devices, libfabric, GPUs, settings, and a NIXL agent on trial."""
    env = environment(env_file.read_text())
    _tell(node.check(node.with_environment(env), env, devices, gpus))


@commands.command("log")
@click.option("--backend", type=click.Choice([checks.LIBFABRIC, checks.UCX]), default="LIBFABRIC")
@click.option(
    "--ranks", type=click.IntRange(1), default=configure.RANKS, show_default=True, metavar="N",
    help="Workers of the engine: each has a NIXL agent.",
)  # fmt: skip
@_DEVICES
def log(backend: str, ranks: int, devices: int) -> None:
    """After the engine has started: its journal, on standard input, must tell of EFA alone."""
    _tell([checks.engine_log(sys.stdin.read(), backend, ranks, devices)])


@commands.command("snapshot")
@click.option("--engine", required=True, metavar="URL", help="This node's engine.")
def snapshot(engine: str) -> None:
    """Print what the node's EFA devices and its engine have counted, for ``moved``."""
    try:
        pages = asyncio.run(read_pages([Page("engine", engine)]))
        click.echo(counters.take(counters.nixl_bytes(pages["engine"])).dump())
    except (PageUnreadable, counters.CountersUnreadable) as error:
        raise click.ClickException(str(error)) from None


@commands.command("moved")
@click.argument("before", type=_FILE)
@click.argument("after", type=_FILE)
def moved(before: Path, after: Path) -> None:
    """Whether what an engine read between two snapshots of its node went over EFA."""
    try:
        finding = counters.moved(counters.Snapshot.load(before), counters.Snapshot.load(after))
    except counters.CountersUnreadable as error:
        raise click.ClickException(str(error)) from None
    _tell([finding])


@commands.command("compare")
@_MODEL
@click.argument("results", type=_FILE, nargs=-1, required=True)
def compare_results(model: str, results: tuple[Path, ...]) -> None:
    """Results of bench.sh beside what the reference has published."""
    try:
        found = [compare.read(path) for path in results]
    except compare.NotComparable as error:
        raise click.ClickException(str(error)) from None
    print_table(compare.COLUMNS, compare.table(found, MODELS[model]))


def _tell(findings: Iterable[Finding]) -> None:
    bad = False
    for finding in findings:
        click.echo(f"{'ok' if finding.good else 'REFUSED':8}{finding.check}: {finding.said}")
        if not finding.good:
            bad = True
            click.echo(f"        what to do: {finding.do}")
    if bad:
        sys.exit(1)


if __name__ == "__main__":
    commands(prog_name="python -m deploy.ec2")
