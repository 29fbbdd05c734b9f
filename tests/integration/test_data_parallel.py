"""A deployment whose engines have several data-parallel ranks."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from contraflow.cli.deployment import MODEL_NAME, Deployment, DeploymentSpec, EngineKind
from contraflow.cli.deployment.control_plane import engines_in_view
from contraflow.router.report import parse_header

pytestmark = pytest.mark.integration

RANKS = 2
SPEC = DeploymentSpec(
    engine=EngineKind.SIM, engine_args=("--data-parallel-size", str(RANKS)), start_deadline=60
)


async def test_it_is_ready_once_all_ranks_are_known_and_pulls_from_the_one_that_answered() -> None:
    async with Deployment(SPEC) as deployment, aiohttp.ClientSession() as http:
        for _ in range(2):
            known = await engines_in_view(deployment.routers[0].grpc)
            assert len(known) == 2 * RANKS, known
            await deployment.restart("decode-1")
        messages: list[dict[str, Any]] = []
        outcomes = []
        for _ in range(3):
            messages.append({"role": "user", "content": "Go on, please. " * 10})
            body = {"model": MODEL_NAME, "messages": messages, "session_id": "s",
                    "min_tokens": 96, "max_tokens": 96}  # fmt: skip
            url = f"{deployment.routers[0].http}/v1/chat/completions"
            async with http.post(url, json=body) as response:
                answer = await response.json()
                assert response.status == 200, answer
                outcomes.append(parse_header(response.headers["x-contraflow"]).get("outcome"))
            messages.append(
                {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
            )
    assert outcomes[1:] == ["PULLED", "PULLED"]
