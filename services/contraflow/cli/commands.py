"""The commands: the services, a deployment of all of them on this machine, and the operators'."""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

import contraflow
from contraflow.cli import operate
from contraflow.cli.bench.command import bench
from contraflow.cli.engine_sim import engine_sim
from contraflow.cli.written import output_is_written

_CONFIG = click.option(
    "--config",
    "config",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Configuration in TOML.",
)

_ENGINE = click.option(
    "--engine", type=click.Choice(["vllm", "sim"]), default="vllm", show_default=True,
    help="Real vLLM with NIXL on CPU cores, or simulated engines.",
)  # fmt: skip


class _Commands(click.Group):
    """Loads the operators' commands when they are named: services do without. Ends by Ctrl-C, or
    because nobody takes the output, are no failures to show a stack for."""

    def main(self, *args: Any, **settings: Any) -> Any:
        """As click's."""
        with output_is_written():
            return super().main(*args, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        """As click's."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(128 + signal.SIGINT)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *operate.COMMANDS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in operate.COMMANDS:
            return super().get_command(ctx, cmd_name)
        module = import_module(f"contraflow.cli.operate.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command


@click.group(
    "contraflow",
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(contraflow.__version__, prog_name="contraflow")
def commands() -> None:
    """Control plane for bidirectional KV cache transfer between vLLM engines.

    \b
    Examples:
      contraflow demo                          five turns on real engines, and the proof
      contraflow demo --engine sim             the same in seconds, on simulated engines
      contraflow up --port 8000                keep a deployment running for OpenAI clients
      contraflow router --config router.toml   one service of a cluster
      contraflow ps                            the engines of a cluster
      contraflow bench --leg a=http://127.0.0.1:8000   multi-turn conversations, measured

    Exit status: 0 on success, 1 if something failed, 2 for wrong usage or configuration.
    """


@commands.command()
@_CONFIG
def directory(config: Path) -> None:
    """Serve the directory: what the fleet knows of engines and sessions, kept in etcd.

    \b
    Example:
      contraflow directory --config /etc/contraflow/directory.toml
    """
    _serve("directory", config)


@commands.command()
@_CONFIG
def agent(config: Path) -> None:
    """Serve the agent of a node, beside its vLLM engines.

    \b
    Example:
      contraflow agent --config /etc/contraflow/agent.toml
    """
    _serve("agent", config)


@commands.command()
@_CONFIG
def router(config: Path) -> None:
    """Serve a router: the OpenAI front door.

    \b
    Example:
      contraflow router --config /etc/contraflow/router.toml
    """
    _serve("router", config)


@commands.command()
@click.option(
    "--port", type=click.IntRange(1, 65535), metavar="N",
    help="Port of the first router; a random free one by default.",
)  # fmt: skip
@click.option(
    "--routers", type=click.IntRange(1, 16), default=1, show_default=True, metavar="N",
    help="How many routers.",
)  # fmt: skip
@click.option(
    "--prefill", type=click.IntRange(1, 64), default=1, show_default=True, metavar="N",
    help="How many prefill engines.",
)  # fmt: skip
@click.option(
    "--decode", type=click.IntRange(1, 64), default=1, show_default=True, metavar="N",
    help="How many decode engines.",
)  # fmt: skip
@_ENGINE
def up(engine: str, prefill: int, decode: int, port: int | None, routers: int) -> None:
    """Run a whole deployment on this machine until Ctrl-C.

    Prefill and decode engines; etcd, directory, agent and routers in front. Any OpenAI client
    can talk to it. The engines are real vLLM with a tiny random model on CPU cores, 1.7 GB of
    memory each, or simulated ones, which start in seconds.

    \b
    Examples:
      contraflow up
      contraflow up --port 8000 --routers 2
      contraflow up --engine sim --prefill 4 --decode 4
    """
    from contraflow.cli.deployment import DeploymentSpec, EngineKind
    from contraflow.cli.up import run

    spec = DeploymentSpec(
        engine=EngineKind(engine),
        prefills=prefill,
        decodes=decode,
        routers=routers,
        router_port=port,
        sim_profile="cpu-demo",
    )
    sys.exit(run(spec))


_OF_A_CAMPAIGN = ("seeds", "first", "jobs", "least", "planted")


@commands.command()
@click.option(
    "--seeds", type=click.IntRange(1), default=300, show_default=True, metavar="N",
    help="How many worlds.",
)  # fmt: skip
@click.option(
    "--turns", type=click.IntRange(1), default=300, show_default=True, metavar="M",
    help="Turns in each.",
)  # fmt: skip
@click.option("--first", type=int, default=0, show_default=True, metavar="S", help="First seed.")
@click.option(
    "--jobs", type=click.IntRange(1), metavar="J", help="Processes; one a core by default."
)
@click.option(
    "--least", type=click.IntRange(0), default=100, show_default=True, metavar="N",
    help="Fail if anything of the coverage was met less often.",
)  # fmt: skip
@click.option(
    "--planted/--no-planted", default=True, show_default=True,
    help="Put defects into the code and see that each is caught.",
)  # fmt: skip
@click.option("--replay", type=int, metavar="SEED", help="Run one seed again and tell all.")
@click.option("--skip", default="", metavar="N,N,…", help="Leave these faults out of a replay.")
@click.option("--shorten", is_flag=True, help="Look for the shortest replay that still fails.")
@click.pass_context
def verify(
    context: click.Context, seeds: int, turns: int, first: int, jobs: int | None, least: int,
    planted: bool, replay: int | None, skip: str, shorten: bool,
) -> None:  # fmt: skip
    """Try to break the system: many simulated fleets under faults, in virtual time.

    Router, directory, agent and handle table are the real ones, over sim engines; a seed decides
    everything. Every turn is compared with an engine that shares nothing, every read with what
    its owner held then; at the end nothing may be left.

    \b
    Examples:
      contraflow verify
      contraflow verify --seeds 1000 --turns 1000 --no-planted
      contraflow verify --replay 17 --turns 300 --shorten
    """
    from contraflow.cli import verify as command

    strangers = ("skip", "shorten") if replay is None else _OF_A_CAMPAIGN
    for name in strangers:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            goes = "goes with --replay" if replay is None else "does not go with --replay"
            raise click.UsageError(f"--{name} {goes}.")
    if replay is None:
        sys.exit(command.verify(seeds, turns, first, jobs, least, planted=planted))
    try:
        left_out = frozenset(int(number) for number in skip.split(",") if number)
    except ValueError:
        raise click.UsageError("--skip takes numbers, separated by commas") from None
    sys.exit(command.replay(replay, turns, left_out, shorten=shorten))


@commands.command()
@click.option("--reference", is_flag=True, help="The reference's published times.")
@click.option("--loads", is_flag=True, help="The reference's nodes under other loads.")
@click.option("--decision", is_flag=True, help="Pull or recompute, as learnt.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the pauses of --loads.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def simulate(reference: bool, loads: bool, decision: bool, seed: int, as_json: bool) -> None:
    """Compute what the hardware makes of a workload, without any of it.

    --reference: TTFT and transfer times that were published for bidirectional transfer on p5en
    nodes, beside those of a model of FLOPs, bytes, descriptors and bandwidth that is fitted on the
    short prompts. Fails if one is off by more than 15 %.

    --loads: what was not published, by the same model in virtual time: prefix caching on P, many
    clients, several P and D, throughput, and the memory that D holds for pulls to come.

    --decision: what turns take whose decision is fitted to what was measured before, beside fixed
    thresholds and an oracle that knows the true costs, for two models, several loads and wrong
    profiles, by length of the prompt. Fails if it takes 3 % longer than the oracle or longer than
    the best threshold, or explores too much. A minute of one core.

    \b
    Examples:
      contraflow simulate --reference
      contraflow simulate --loads --seed 7
      contraflow simulate --decision --json
    """
    if reference + loads + decision != 1:
        raise click.UsageError("Say what to simulate: --reference, --loads or --decision.")
    if loads:
        from contraflow.cli import simulate_loads

        sys.exit(simulate_loads.loads(seed=seed, as_json=as_json))
    if decision:
        from contraflow.cli import simulate_decision

        sys.exit(simulate_decision.decision(as_json=as_json))
    from contraflow.cli import simulate as command

    sys.exit(command.reference(as_json=as_json))


@commands.command()
@_ENGINE
def demo(engine: str) -> None:
    """Run a five-turn agent conversation and prove that KV is pulled back.

    Fails if a figure differs from the engines' own metrics, or a token from a plain engine's.

    \b
    Examples:
      contraflow demo
      contraflow demo --engine sim
    """
    from contraflow.cli.demo.run import run
    from contraflow.cli.deployment import EngineKind

    sys.exit(run(EngineKind(engine)))


commands.add_command(bench)
commands.add_command(engine_sim)


def _base_url(context: click.Context, parameter: click.Parameter, value: str) -> str:
    try:
        url = urlsplit(value)
        good = url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError:
        good = False
    if not good:
        raise click.BadParameter(f"{value!r} is not http://host:port or https://host:port")
    return value


@commands.command("wait-engine")
@click.argument("endpoint", metavar="URL", callback=_base_url)
@click.option(
    "--within", type=click.FloatRange(min=0), default=2400.0, show_default=True,
    metavar="SECONDS", help="The longest wait.",
)  # fmt: skip
@click.option(
    "--pid", type=click.IntRange(min=1), metavar="N",
    help="The engine's process: if it ends, so does the wait.",
)  # fmt: skip
def wait_engine(endpoint: str, within: float, pid: int | None) -> None:
    """Wait until an engine answers. The units of systemd call it started then.

    URL is the base of its OpenAI server.

    \b
    Example:
      contraflow wait-engine http://10.0.0.5:8100 --within 600
    """
    from contraflow.cli.wait_engine import run

    sys.exit(run(endpoint, within, pid))


def _serve(service: str, config: Path) -> None:
    # Imported here: a service loads neither the others' libraries nor the deployment's.
    sys.exit(import_module(f"contraflow.{service}.main").run(config))
