"""The options of ``contraflow bench``."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from contraflow.bench.multiturn.endpoint import Leg
    from contraflow.bench.multiturn.workload import Workload
    from contraflow.cli.bench.counters import Page

_NAME = re.compile(r"[A-Za-z0-9._-]{1,40}\Z")
_TOKENS = re.compile(r"(\d+)(k?)\Z")
_OF_A_SHAPE = ("shape", "conversations", "turns", "prefix", "input", "output", "think")
_COUNT: Any = {"type": click.IntRange(1), "metavar": "N"}


def _named(value: str, option: str) -> tuple[str, str]:
    name, found, url = value.partition("=")
    if not found or not _NAME.match(name):
        raise click.BadParameter(
            f"{value!r} is not NAME=URL, as in {option} bidirectional=http://127.0.0.1:8000; a "
            "name has letters, digits, dots, dashes"
        )
    return name, url


def _legs(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> Any:
    from contraflow.bench.multiturn import endpoint
    from contraflow.web import Origin

    legs: list[Leg] = []
    for value in values:
        name, url = _named(value, "--leg")
        try:
            origin = Origin.parse(url.rstrip("/").removesuffix("/v1"))
        except ValueError as error:
            raise click.BadParameter(
                f"{error}; for a server behind TLS or a path put a local proxy before it"
            ) from None
        if any(leg.name == name for leg in legs):
            raise click.BadParameter(f"two legs are called {name!r}")
        legs.append(endpoint.Leg(name, origin))
    return tuple(legs)


def _pages(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> Any:
    from contraflow.cli.bench.counters import Page

    pages = []
    for value in values:
        whole = value.startswith("http://")
        label, url = (value, value) if whole else _named(value, "--metrics")
        if not url.startswith("http://"):
            raise click.BadParameter(f"{url!r} does not start with http://")
        pages.append(Page(label, url))
    if len({page.label for page in pages}) < len(pages):
        raise click.BadParameter("two pages have one name")
    return tuple(pages)


def _range(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    if value is None:
        return None
    ends = [_TOKENS.match(end) for end in value.split("-")]
    if not 1 <= len(ends) <= 2 or not all(ends):
        raise click.BadParameter(f"{value!r} is no number of tokens such as 2k, nor a span 2k-24k")
    low, *_, high = [int(end[1]) * (1000 if end[2] else 1) for end in (ends[0], ends[-1]) if end]
    if low > high:
        raise click.BadParameter(f"{value!r} begins above its end")
    return low, high


def _plain(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if value and not _NAME.match(value):
        raise click.BadParameter("use up to 40 letters, digits, dots and dashes")
    return value


def _into_a_folder(
    context: click.Context, parameter: click.Parameter, value: Path | None
) -> Path | None:
    if value is not None and not value.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(value.parent)!r}: make it first")
    return value


@click.command()
@click.option(
    "--leg", "legs", multiple=True, required=True, metavar="NAME=URL", callback=_legs,
    help="A server to measure; several take turns. The others are compared with the first.",
)  # fmt: skip
@click.option(
    "--shape", type=click.Choice(["reference", "agent"]), default="reference", show_default=True,
    help="Long prefixes and even turns, or tools' results, pauses and forks. The reference's \"10 "
    "turns\" are messages: five requests, with 500 tokens in common before each prefix.",
)  # fmt: skip
@click.option(
    "--file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="Lengths from a generate_multi_turn.json of vLLM's benchmark instead of a shape.",
)  # fmt: skip
@click.option("--conversations", help="How many; 10 by default, 8 for agents.", **_COUNT)
@click.option("--turns", help="Requests of a conversation; 5 by default, 12 for agents.", **_COUNT)
@click.option(
    "--prefix", callback=_range, metavar="A-B",
    help="Tokens before the first turn, spread evenly; 2k-24k by default, 500-4k for agents.",
)  # fmt: skip
@click.option(
    "--input", help="Tokens that a turn adds; 150 by default, about 400 for agents.", **_COUNT
)
@click.option(
    "--output", help="Tokens of an answer; 300 by default, about 120 for agents.", **_COUNT
)
@click.option(
    "--think", type=click.FloatRange(min=0), metavar="SECONDS",
    help="Mean time of a tool in the agent shape; 1 by default. People take five times as long.",
)  # fmt: skip
@click.option(
    "--clients", default=2, show_default=True, help="Conversations at once, over all legs.",
    **_COUNT,
)  # fmt: skip
@click.option(
    "--warmup", "warm_up", type=click.IntRange(0), default=2, show_default=True, metavar="N",
    help="Turns on each leg before anything counts.",
)  # fmt: skip
@click.option("--model", default="", metavar="NAME", help="By default the first that a leg lists.")
@click.option(
    "--api", type=click.Choice(["chat", "tokens"]), default="chat", show_default=True,
    help="Messages, for any server, or token ids in and out, as vLLM takes them: exact lengths.",
)  # fmt: skip
@click.option(
    "--ignore-eos/--no-ignore-eos", default=True, show_default=True,
    help="Make answers as long as they should be; a field of vLLM's.",
)  # fmt: skip
@click.option(
    "--fresh-salt", multiple=True, metavar="NAME",
    help="A leg whose requests each get a cache_salt of their own, as if vLLM's prefix cache "
    "were off.",
)  # fmt: skip
@click.option(
    "--primed", multiple=True, metavar="NAME",
    help="A leg on which each history is sent once more, uncounted, before its next turn: what "
    "prefill takes if its own cache has everything, the last answer too.",
)  # fmt: skip
@click.option(
    "--conversation-id", multiple=True, metavar="NAME",
    help="A leg whose requests carry conversation_id in their body, as vLLM's example proxy "
    "wants it; all carry X-Session-ID.",
)  # fmt: skip
@click.option(
    "--metrics", "pages", multiple=True, metavar="[NAME=]URL", callback=_pages,
    help="An engine's Prometheus page, read before and after.",
)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, metavar="S")
@click.option(
    "--marker", default="", metavar="TEXT", callback=_plain,
    help="Same seed and marker, same prompts; a new one by default, lest caches know them.",
)  # fmt: skip
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=600.0, show_default=True,
    metavar="SECONDS", help="The longest silence in a turn.",
)  # fmt: skip
@click.option(
    "--api-key", envvar="CONTRAFLOW_API_KEY", show_envvar=True, default="", metavar="KEY",
    help="Sent to every leg.",
)  # fmt: skip
@click.option(
    "--json", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    callback=_into_a_folder, help="Write everything, each turn included.",
)  # fmt: skip
@click.option(
    "--plots", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
    callback=_into_a_folder, help="Draw TTFT by prompt length and what prefill was made of.",
)  # fmt: skip
@click.pass_context
def bench(
    context: click.Context, /, legs: tuple[Leg, ...], pages: tuple[Page, ...],
    fresh_salt: tuple[str, ...], primed: tuple[str, ...], conversation_id: tuple[str, ...],
    api: str, **settings: Any,
) -> None:  # fmt: skip
    """Measure multi-turn conversations on OpenAI servers, side by side.

    Every turn goes to each leg in alternation, so that noise hits all alike. Reports TTFT, TPOT
    and end-to-end times by turn and by prompt length with 95 % intervals (bootstrap over
    conversations), ratios of TTFT, and what Contraflow's x-contraflow header tells of prefill.
    Ctrl-C ends with what was measured so far. Turns that fail are counted, in no average, and
    make the exit status 1.

    \b
    Examples:
      contraflow bench --leg bidirectional=http://127.0.0.1:8000
      contraflow bench --leg one-way=http://10.0.0.5:8000 --leg both=http://10.0.0.6:8000 \\
          --metrics P=http://10.0.0.7:8100 --json result.json --plots figures
      contraflow bench --leg a=http://127.0.0.1:8000 --shape agent --clients 8 --think 0.2
      contraflow bench --leg a=http://127.0.0.1:8000 --prefix 500-3k --turns 5 --output 64
      contraflow bench --leg a=http://127.0.0.1:8000 --file body.json --seed 7
    """
    from contraflow.cli.bench.run import Plan, run

    names = {leg.name for leg in legs}
    special = (
        ("fresh-salt", fresh_salt), ("primed", primed), ("conversation-id", conversation_id),
    )  # fmt: skip
    for option, chosen in special:
        for name in set(chosen) - names:
            raise click.UsageError(f"--{option} {name}: no --leg is called so.")
    legs = tuple(
        replace(
            leg,
            fresh_salt=leg.name in fresh_salt,
            primed=leg.name in primed,
            conversation_id=leg.name in conversation_id,
        )
        for leg in legs
    )
    shape = {name: settings.pop(name) for name in (*_OF_A_SHAPE, "file")}
    workload = _workload(context, settings["seed"], **shape)
    plan = Plan(workload, legs, pages, tokens=api == "tokens", **settings)
    sys.exit(run(plan))


def _workload(
    context: click.Context, seed: int, *, shape: str, file: Path | None, **sizes: Any
) -> Workload:
    from contraflow.bench.multiturn import shapes
    from contraflow.bench.multiturn.vllm_file import WorkloadFileError, read_workload

    if file is not None:
        for name in _OF_A_SHAPE:
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"--{name} does not go with --file.")
        try:
            return read_workload(file, seed)
        except WorkloadFileError as error:
            raise click.UsageError(f"--file: {error}") from None
    if shape == "reference" and sizes["think"]:
        raise click.UsageError("--think goes with --shape agent.")
    default = shapes.AGENT if shape == "agent" else shapes.REFERENCE
    fields = {
        "conversations": sizes["conversations"], "turns": sizes["turns"],
        "prefix": sizes["prefix"], "input_tokens": sizes["input"],
        "output_tokens": sizes["output"], "think_seconds": sizes["think"],
    }  # fmt: skip
    given = {name: value for name, value in fields.items() if value is not None}
    made = shapes.agent if shape == "agent" else shapes.reference
    return made(replace(default, **given), seed)
