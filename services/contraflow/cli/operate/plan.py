"""``contraflow plan``: what a router would do with a turn, and why."""

from __future__ import annotations

from functools import partial
from typing import Any, TextIO

import click

from contraflow.cli.operate.options import json_option, router_option
from contraflow.cli.operate.output import counted, enum_name, print_json, print_table, span
from contraflow.cli.operate.servers import DEADLINE_SECONDS, Server, Servers, ask, credentials
from contraflow.v1 import engine_pb2
from contraflow.v1 import router_service_pb2 as pb
from contraflow.wire.convert import seconds

SENTENCES = {
    "HANDLE_AVAILABLE": "a decode engine holds a handle of the session that is worth a pull",
    "NO_SESSION": "the request names no session",
    "NO_HANDLE": "nobody is known to hold a handle of the session",
    "BELOW_THRESHOLD": "the handle has fewer tokens than a pull is worth",
    "INCOMPATIBLE": "no prefill engine can read the blocks of the engine that holds the handle",
    "UNSUPPORTED_REQUEST": "the request skips the prefix cache: a handle would be spent unread",
    "ACQUIRE_DENIED": "the owner denied the claim",
    "ACQUIRE_TIMEOUT": "the owner did not answer in time",
    "LEASE_TOO_SHORT": "the lease of the handle would not cover the turn",
    "AMBIGUOUS_SESSION": "several conversations have these very messages: a session id would tell",
    "PREFILL_UNREACHABLE": "no prefill engine takes requests: decode computes the prompt",
    "SHORT_SUFFIX": "decode holds the conversation but for a few tokens, which it computes",
    "NO_PREFILL_ENGINE": "no prefill engine is eligible: decode computes the prompt",
}
"""Of each reason, by its name."""

_COLUMNS = ("ENGINE", "ROLE", "ENDPOINT", "LOAD#", "SCORE#", "HOME", "VERDICT")


@click.command()
@click.option("--session", "session_id", default="", metavar="ID", help="The client's session id.")
@click.option("--model", default="", metavar="NAME", help="By default what engines serve first.")
@click.option(
    "--request", "body", type=click.File(encoding="utf-8"), metavar="FILE",
    help="Plan this chat request: JSON, - for standard input.",
)  # fmt: skip
@click.option(
    "--prompt-tokens", type=click.IntRange(0), default=0, metavar="N",
    help="Length of the prompt, for the estimates; by default that of the handle.",
)  # fmt: skip
@click.option("--tenant", default="default", show_default=True, metavar="NAME", help="Who asks.")
@router_option
@json_option
def plan(
    session_id: str, model: str, body: TextIO | None, prompt_tokens: int, tenant: str,
    router: Server, as_json: bool,
) -> None:  # fmt: skip
    """Ask a router what it would do with the next turn of a conversation, and why.

    Nothing is claimed or sent. The estimates, with their standard errors, come from what the
    router has measured, and from its cost profile as long as it has not.

    \b
    Examples:
      contraflow plan --session my-conversation
      contraflow plan --session my-conversation --model demo --prompt-tokens 32000
      contraflow plan --request body.json --tenant acme --json
    """
    request = pb.PlanTurnRequest(
        tenant=tenant,
        session_id=session_id,
        model=model,
        openai_json=body.read() if body else "",
        prompt_tokens=prompt_tokens,
    )
    with Servers() as servers:
        call = servers.router(router).PlanTurn
        found = ask(
            router, partial(call, request, timeout=DEADLINE_SECONDS, metadata=credentials())
        )
    document = describe(found)
    if as_json:
        print_json(document)
    else:
        _show(document)


def describe(plan: pb.PlanTurnResponse) -> dict[str, Any]:
    """A plan as JSON has it."""
    return {
        "decision": _decision(plan.decision),
        "reason": enum_name(pb.DecisionReason, plan.reason, "DECISION_REASON_"),
        "prefill_engine_id": plan.prefill_engine_id,
        "decode_engine_id": plan.decode_engine_id,
        "session_key": plan.session_key,
        "handle_id": plan.handle_id,
        "handle_tokens": plan.handle_tokens,
        "candidates": [
            {
                "engine_id": one.engine_id,
                "role": enum_name(engine_pb2.EngineRole, one.role, "ENGINE_ROLE_").lower(),
                "endpoint": one.endpoint,
                "load": one.load,
                "score": one.score,
                "home": one.home,
                "rejected_reason": one.rejected_reason,
            }
            for one in plan.candidates
        ],
        "estimates": [
            {
                "decision": _decision(one.decision),
                "pulled_tokens": one.pulled_tokens,
                "computed_tokens": one.computed_tokens,
                "seconds": seconds(one.time),
                "error_seconds": seconds(one.error),
            }
            for one in plan.estimates
        ],
    }


def _show(plan: dict[str, Any]) -> None:
    why = SENTENCES.get(plan["reason"], plan["reason"])
    click.echo(f"{plan['decision']}: {why} ({plan['reason']})")
    click.echo(f"prefill  {plan['prefill_engine_id'] or '-'}")
    click.echo(f"decode   {plan['decode_engine_id']}")
    click.echo(f"session  {plan['session_key'] or '-'}")
    if plan["handle_tokens"]:
        of = plan["handle_id"] or "its id is not known yet"
        click.echo(f"handle   {counted(plan['handle_tokens'], 'token')}, {of}")
    for one in plan["estimates"]:
        error = f" ± {_short(one['error_seconds'])}" if one["error_seconds"] else ""
        click.echo(
            f"{one['decision']} would take {_short(one['seconds'])}{error}: "
            f"{one['pulled_tokens']:,} pulled, {one['computed_tokens']:,} computed"
        )
    click.echo()
    print_table(_COLUMNS, (_cells(plan, one) for one in plan["candidates"]))


def _cells(plan: dict[str, Any], one: dict[str, Any]) -> tuple[str, ...]:
    chosen = one["engine_id"] in (plan["prefill_engine_id"], plan["decode_engine_id"])
    return (
        one["engine_id"],
        one["role"],
        one["endpoint"],
        str(one["load"]),
        f"{one['score']:g}",
        "home" if one["home"] else "",
        one["rejected_reason"] or ("chosen" if chosen else "eligible"),
    )


def _decision(number: int) -> str:
    return enum_name(pb.Decision, number, "DECISION_")


def _short(duration: float) -> str:
    return f"{duration * 1000:.1f} ms" if duration < 1 else span(duration)
