"""The routes beside generation."""

from __future__ import annotations

import json

from tests.integration.sim.conftest import MODEL, Serve
from tests.support.scripted_engine import ScriptedEngine

from contraflow.cli.deployment.metrics import PromptTokens, parse_samples, prompt_tokens
from contraflow.sim.text import decode, render_chat


async def test_health_version_and_models(serve: Serve, engine: ScriptedEngine) -> None:
    client = await serve(engine, vllm="0.32.0")
    assert await client.get("/health") == (200, "")
    assert json.loads((await client.get("/version"))[1]) == {"version": "0.32.0"}
    models = json.loads((await client.get("/v1/models"))[1])
    assert [model["id"] for model in models["data"]] == [MODEL, "alias"]
    assert models["data"][0]["max_model_len"] == 1024


async def test_unknown_paths_and_methods(serve: Serve, engine: ScriptedEngine) -> None:
    client = await serve(engine)
    status, text = await client.get("/nowhere")
    assert (status, json.loads(text)["error"]["code"]) == (404, 404)
    assert (await client.get("/v1/completions"))[0] == 405


async def test_text_goes_to_tokens_and_back(serve: Serve, engine: ScriptedEngine) -> None:
    client = await serve(engine)
    _, there = await client.post("/tokenize", {"prompt": "Hé", "return_token_strs": True})
    assert (there["count"], there["tokens"]) == (3, list("Hé".encode()))
    assert len(there["token_strs"]) == 3
    assert there["max_model_len"] == 1024
    _, back = await client.post("/detokenize", {"tokens": there["tokens"]})
    assert back == {"prompt": "Hé"}
    messages = [{"role": "user", "content": "Hé"}]
    chat = {"messages": messages, "add_generation_prompt": False}
    _, there = await client.post("/tokenize", chat)
    assert decode(there["tokens"]) == render_chat(messages, add_generation_prompt=False)
    assert (await client.post("/tokenize", {}))[0] == 400
    assert (await client.post("/detokenize", {"tokens": [264]}))[0] == 400


async def test_the_demo_reads_an_engines_counters(serve: Serve) -> None:
    first, second = ScriptedEngine(), ScriptedEngine()
    first.counters.prompt_tokens_external = 100
    first.counters.prompt_tokens_local_cache_hit = 20
    second.counters.prompt_tokens_computed = 3
    first.counters.nixl_bytes = 4096
    first.counters.nixl_transfers += [0.02, 0.03]
    first.counters.kv_cache_usage = 0.25
    first.counters.finished["stop"] = 2
    first.counters.nixl_expired_requests = 5
    _, page = await (await serve(first, second)).get("/metrics")

    samples = parse_samples(page)
    assert prompt_tokens(samples) == PromptTokens(pulled=100, local=20, computed=3, bytes=4096)
    assert samples["vllm:prompt_tokens_total"] == 123
    assert samples["vllm:external_prefix_cache_hits_total"] == 100
    assert samples["vllm:prefix_cache_hits_total"] == 20
    assert samples["vllm:kv_cache_usage_perc"] == 0.25
    assert samples["vllm:nixl_num_kv_expired_reqs_total"] == 5
    assert samples["vllm:nixl_bytes_transferred_count"] == 2
    lines = page.splitlines()
    rank = f'engine="0",model_name="{MODEL}"'
    assert (
        f'vllm:request_success_total{{engine="0",finished_reason="stop",model_name="{MODEL}"}} 2.0'
        in lines
    )
    assert (
        f'vllm:nixl_xfer_time_seconds_bucket{{engine="0",le="0.025",model_name="{MODEL}"}} 1.0'
        in lines
    )
    assert f"vllm:nixl_xfer_time_seconds_count{{{rank}}} 2.0" in lines
    assert 'vllm:num_requests_running{engine="1",model_name="tiny"} 0.0' in lines
