"""``contraflow engine-sim``: flags as vLLM names them."""

from __future__ import annotations

import sys
from typing import Any

import click

_NAMED: dict[str, Any] = {"metavar": "N", "show_default": True}


def _not_blank(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    if any(not text.strip() for text in ([value] if isinstance(value, str) else value)):
        raise click.BadParameter("must not be empty")
    return value


def _ignored(command: Any) -> Any:
    """Flags of vLLM that launchers pass and that mean nothing here."""
    for name in ("--dtype", "--tool-call-parser"):
        command = click.option(name, hidden=True, expose_value=False)(command)
    for name in ("--enforce-eager", "--enable-auto-tool-choice", "--disable-uvicorn-access-log"):
        command = click.option(name, is_flag=True, hidden=True, expose_value=False)(command)
    return command


@click.command("engine-sim")
@click.option(
    "--model", required=True, metavar="NAME", callback=_not_blank, help="Whose KV blocks they are."
)
@click.option(
    "--served-model-name", "served_model_names", multiple=True, metavar="NAME",
    callback=_not_blank, help="What requests call the model; may be given several times.",
)  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST", callback=_not_blank)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, help="0 picks one.", **_NAMED)
@click.option(
    "--block-size", type=click.IntRange(1, 65_536), default=16, help="Tokens of a block.",
    **_NAMED,
)  # fmt: skip
@click.option(
    "--num-gpu-blocks-override", "num_blocks", type=click.IntRange(2, 1_000_000),
    default=4096, help="Blocks of KV cache.", **_NAMED,
)  # fmt: skip
@click.option(
    "--max-model-len", type=click.IntRange(2, 100_000_000), default=32_768,
    help="Tokens of prompt and answer.", **_NAMED,
)  # fmt: skip
@click.option(
    "--max-num-seqs", type=click.IntRange(1, 65_536), default=64, help="Requests in a batch.",
    **_NAMED,
)  # fmt: skip
@click.option(
    "--data-parallel-size", type=click.IntRange(1, 64), default=1,
    help="Ranks; X-data-parallel-rank picks one.", **_NAMED,
)  # fmt: skip
@click.option(
    "--kv-transfer-config", default="", metavar="JSON",
    help="As for real engines; without it there is no connector.",
)  # fmt: skip
@click.option(
    "--kv-events-config", default="", metavar="JSON", help="KV events over ZMQ, as vLLM's."
)
@click.option(
    "--profile", default="instant", show_default=True, metavar="NAME",
    help="What steps and transfers cost: instant, cpu-demo, p5en-h200-efa.",
)  # fmt: skip
@click.option(
    "--vllm-version", default="0.33", show_default=True, metavar="X.Y",
    help="The release to look like: 0.32 or 0.33.",
)  # fmt: skip
@click.option(
    "--side-channel-host", envvar="VLLM_NIXL_SIDE_CHANNEL_HOST", default="127.0.0.1",
    show_default=True, show_envvar=True, metavar="HOST", callback=_not_blank,
    help="Where peers read blocks.",
)  # fmt: skip
@click.option(
    "--side-channel-port", envvar="VLLM_NIXL_SIDE_CHANNEL_PORT", type=click.IntRange(0, 65535),
    default=5600, show_envvar=True, help="Of rank 0; 0 picks one.", **_NAMED,
)  # fmt: skip
@click.option(
    "--shutdown-timeout", type=click.IntRange(0, 86_400), default=0,
    help="Seconds after a signal for what runs, and for readers; then it is aborted.", **_NAMED,
)  # fmt: skip
@click.option("--log-level", default="info", show_default=True, metavar="LEVEL")
@_ignored
def engine_sim(**flags: Any) -> None:
    """Serve a simulated engine, which looks like vLLM's OpenAI server.

    It keeps real block tables, prefix caches and leases, exchanges blocks with other simulated
    engines and attaches to an agent; its model is a function of the KV that it reads, so wrong
    KV gives wrong answers. One byte is one token.

    \b
    Examples:
      contraflow engine-sim --model demo --port 8000
      contraflow engine-sim --model demo --port 8000 --data-parallel-size 2 --profile cpu-demo
      contraflow engine-sim --model demo --port 8000 --kv-transfer-config '{
          "engine_id": "decode-1", "kv_role": "kv_consumer", "kv_connector_extra_config": {
          "bidirectional_kv_xfer": true, "contraflow": {"role": "decode",
          "agent": "127.0.0.1:7200", "endpoint": "http://127.0.0.1:8000"}}}'
    """
    from contraflow.sim.main import Flags, run

    sys.exit(run(Flags(**flags)))
