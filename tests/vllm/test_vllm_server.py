"""What the sidecar builds on, seen on the real vLLM: routes, usage, metrics, priority, aborts."""

import asyncio

import aiohttp
import pytest
from support.openai_stream import events
from support.vllm_engine import VllmEngine
from tidegate_sidecar.metrics_text import read_engine_metrics

from testbed.real_vllm import BLOCK_TOKENS, MODEL

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]  # an engine's start counts

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Say something."}]}
LONG_TOKENS = 6000
"""At some hundred tokens a second, far longer than any test waits for it to be aborted."""


def completion(tokens: int, **more: object) -> dict[str, object]:
    return {
        "model": MODEL, "prompt": "Once", "max_tokens": tokens, "ignore_eos": True, **more
    }  # fmt: skip


async def until_idle(engine: VllmEngine, client: aiohttp.ClientSession, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        now = await engine.metrics(client)
        while now["vllm:num_requests_running"] or now["vllm:num_requests_waiting"]:
            await asyncio.sleep(0.05)
            now = await engine.metrics(client)


async def test_models_lists_the_served_name(client: aiohttp.ClientSession) -> None:
    async with client.get("/v1/models") as answer:
        models = (await answer.json())["data"]
    assert [(model["id"], model["max_model_len"]) for model in models] == [(MODEL, 8192)]


async def test_chat_answers_in_one_piece(client: aiohttp.ClientSession) -> None:
    body = CHAT | {"max_tokens": 7, "ignore_eos": True}
    async with client.post("/v1/chat/completions", json=body) as answer:
        assert answer.status == 200
        said = await answer.json()
    assert said["choices"][0]["message"]["role"] == "assistant"
    assert said["choices"][0]["finish_reason"] == "length"
    assert said["usage"]["completion_tokens"] == 7
    assert said["usage"]["prompt_tokens"] > 7


async def test_greedy_completions_are_deterministic(client: aiohttp.ClientSession) -> None:
    texts = []
    for _ in range(2):
        async with client.post("/v1/completions", json=completion(12, temperature=0)) as answer:
            texts.append((await answer.json())["choices"][0]["text"])
    assert texts[0] == texts[1]
    assert texts[0]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/v1/completions", completion(9), id="completions"),
        pytest.param(
            "/v1/chat/completions", CHAT | {"max_tokens": 9, "ignore_eos": True}, id="chat"
        ),
    ],
)
async def test_a_stream_ends_with_its_usage(
    client: aiohttp.ClientSession, path: str, body: dict[str, object]
) -> None:
    streamed = body | {"stream": True, "stream_options": {"include_usage": True}}
    async with client.post(path, json=streamed) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        got = [event async for event in events(answer)]
    assert got[-1]["choices"] == []
    assert got[-1]["usage"]["completion_tokens"] == 9
    assert not any(event.get("usage") for event in got[:-1])


async def test_a_stream_tells_its_usage_all_along_when_asked(client: aiohttp.ClientSession) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = completion(9, stream=True, stream_options=options)
    async with client.post("/v1/completions", json=body) as answer:
        counts = [event["usage"]["completion_tokens"] async for event in events(answer)]
    assert counts == sorted(counts)
    assert counts[0] <= 1
    assert counts[-1] == 9


async def test_the_sidecar_reads_the_engines_figures(
    engine: VllmEngine, client: aiohttp.ClientSession
) -> None:
    async with client.get("/metrics") as answer:
        figures = read_engine_metrics(await answer.text(), MODEL)
    assert (figures.running, figures.waiting, figures.kv_used_ratio) == (0, 0, 0.0)
    assert figures.kv_block_tokens == BLOCK_TOKENS
    assert figures.kv_blocks is not None
    assert figures.kv_blocks * BLOCK_TOKENS > 8192
    # what the operator, dashboards and the plug-in's tests read besides
    assert {
        "vllm:num_preemptions_total",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:request_success_total",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_bucket",
        "vllm:request_queue_time_seconds_bucket",
        "vllm:e2e_request_latency_seconds_bucket",
        "vllm:iteration_tokens_total_bucket",
    } <= set(await engine.metrics(client))


async def test_the_lower_priority_number_goes_first(
    engine: VllmEngine, client: aiohttp.ClientSession
) -> None:
    order: list[str] = []
    waiting = asyncio.Event()

    async def ask(name: str, tokens: int, priority: int) -> None:
        body = completion(tokens, stream=True, priority=priority)
        async with client.post("/v1/completions", json=body) as answer:
            assert answer.status == 200
            async for _ in events(answer):
                if name not in order:
                    order.append(name)
                    if len(order) == 2:
                        waiting.set()

    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        for name in ("first seat", "second seat"):
            tasks.create_task(ask(name, 600, 0))
        await waiting.wait()
        tasks.create_task(ask("low", 4, 10))
        await engine.until_running(client, waiting=1)
        tasks.create_task(ask("high", 4, -10))
    assert order[2:] == ["high", "low"]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "one piece"])
async def test_a_client_that_leaves_aborts_its_request(
    engine: VllmEngine, client: aiohttp.ClientSession, stream: bool
) -> None:
    await until_idle(engine, client, 10)
    async with engine.client() as leaving:
        task = asyncio.create_task(
            leaving.post("/v1/completions", json=completion(LONG_TOKENS, stream=stream))
        )
        await engine.until_running(client)
        if stream:
            (await task).close()
        else:
            task.cancel()
    before = await engine.metrics(client)
    await until_idle(engine, client, 5)
    after = await engine.metrics(client)
    written = after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"]
    assert written < LONG_TOKENS / 2


async def test_extra_arguments_for_the_plug_in_are_taken(client: aiohttp.ClientSession) -> None:
    body = completion(2, vllm_xargs={"tidegate_tier": "t0", "tidegate_sequence": 7})
    async with client.post("/v1/completions", json=body) as answer:
        assert answer.status == 200


async def test_too_long_a_prompt_is_refused_by_its_name(client: aiohttp.ClientSession) -> None:
    body = completion(1) | {"prompt": "x" * 40_000}
    async with client.post("/v1/completions", json=body) as answer:
        assert answer.status == 400
        assert "8192" in (await answer.json())["error"]["message"]


async def test_a_prefix_is_found_under_its_own_salt_alone(
    engine: VllmEngine, client: aiohttp.ClientSession
) -> None:
    prompt = [(7 * number) % 200 + 1 for number in range(4 * BLOCK_TOKENS + 1)]

    async def found(**salt: str) -> float:
        before = await engine.metrics(client)
        body = completion(1, prompt=prompt, **salt)
        async with client.post("/v1/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
        hits, queries = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
        async with asyncio.timeout(30):  # the counters may follow the answer
            after = await engine.metrics(client)
            while after[queries] < before[queries] + len(prompt):
                await asyncio.sleep(0.05)
                after = await engine.metrics(client)
        return after[hits] - before[hits]

    assert await found(cache_salt="of-a") == 0
    assert await found(cache_salt="of-a") == 4 * BLOCK_TOKENS
    assert await found(cache_salt="of-b") == 0
    assert await found() == 0
