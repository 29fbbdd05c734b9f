"""``contraflow up``: the deployment, running until Ctrl-C."""

from __future__ import annotations

import json
from functools import partial

from rich.console import Console

from contraflow.cli.deployment import MODEL_NAME, Deployment, DeploymentSpec, EngineKind
from contraflow.cli.deployment.progress import ConsoleProgress
from contraflow.cli.session import run_command

ABOUT_ENGINES = {
    EngineKind.VLLM: (
        "The engines are calmed for small machines: their threads pause where vLLM and NIXL would "
        "spin. That changes timing only."
    ),
    EngineKind.SIM: (
        "The engines are simulated: no model, virtual KV, the contracts of vLLM and its connector. "
        "What they say is made of letters at random; the times are those of a cost profile."
    ),
}


def run(spec: DeploymentSpec) -> int:
    """Start, print the addresses, wait for Ctrl-C; returns the exit status."""
    return run_command(partial(_up, spec, Console()))


_NEXT = (
    "import json, sys; body, answer = map(json.loads, sys.argv[1:]); "
    'body["messages"] += [answer["choices"][0]["message"], {"role": "user", "content": "Go on"}]; '
    "print(json.dumps(body))"
)


async def _up(spec: DeploymentSpec, console: Console) -> int:
    progress = ConsoleProgress(console)
    async with Deployment(spec, progress=progress) as deployment:
        progress.idle()
        console.print(describe(deployment), markup=False, highlight=False, soft_wrap=True)
        raise await deployment.death()


def describe(deployment: Deployment) -> str:
    """The addresses, and how to try them."""
    first = deployment.routers[0]
    body = {
        "model": MODEL_NAME,
        "session_id": "try-1",
        "messages": [{"role": "user", "content": "Hello"}],
        "min_tokens": 96,
        "max_tokens": 96,
    }
    services = [
        *((f"{router.name}, HTTP", f"{router.http}/v1") for router in deployment.routers),
        *((f"{router.name}, gRPC", router.grpc) for router in deployment.routers),
        ("directory, gRPC", deployment.addresses.directory),
        ("agent, gRPC", deployment.addresses.agent),
        *((engine.name, engine.endpoint) for engine in deployment.addresses.engines),
        ("logs and configuration", str(deployment.run_dir)),
    ]
    width = max(len(name) for name, _ in services)
    lines = (
        "",
        f"OpenAI base URL  {first.http}/v1",
        f"model            {MODEL_NAME} (tiny and random: what it says makes no sense)",
        "API key          any",
        "",
        *(f"{name:<{width}}  {address}" for name, address in services),
        "",
        "Try it. The second request sends the answer back with another message: the response",
        "header x-contraflow tells what was pulled.",
        f"  BODY='{json.dumps(body)}'",
        f"  URL={first.http}/v1/chat/completions; JSON='content-type: application/json'",
        '  ANSWER=$(curl -s $URL -H "$JSON" -d "$BODY"); echo "$ANSWER"',
        f'  NEXT=$(python3 -c \'{_NEXT}\' "$BODY" "$ANSWER")',
        '  curl -si $URL -H "$JSON" -d "$NEXT" | grep x-contraflow',
        "",
        "For ps, sessions, handles, plan, drain and release in another shell:",
        f"export CONTRAFLOW_DIRECTORY={deployment.addresses.directory} "
        f"CONTRAFLOW_ROUTER={first.grpc}",
        "",
        ABOUT_ENGINES[deployment.spec.engine],
        "Ctrl-C stops everything.",
    )
    return "\n".join(lines)
