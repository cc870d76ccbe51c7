"""O3, O6, O7: rate limits and prompt limit over HTTP, with OpenAI's headers on every answer."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.fake_engine import engine_in_process, until
from support.faulty_engine import (
    DONE,
    MODEL,
    USAGE,
    FaultyEngine,
    answer_well,
    chat_chunk,
    usage_event,
)
from support.faulty_upstream import Connection, event_stream
from support.sidecar import ALICE, BOB, SidecarUnderTest, policy_document, sidecar_under_test

from tidegate.scheduling.contracts import Bundle, PromptLimit

from .conftest import StartSidecar

pytestmark = pytest.mark.integration

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
REMAINING = "x-ratelimit-remaining-requests"


def limited(*limits: dict[str, Any], **members: Any) -> dict[str, Any]:
    return policy_document(tier={"rate_limits": list(limits)}, **members)


async def remaining(sidecar: SidecarUnderTest, status: int = 200, **options: Any) -> str | None:
    """What a request's answer says is left."""
    async with sidecar.request(**options) as answer:
        await answer.read()
        assert answer.status == status, await answer.text()
        left: str | None = answer.headers.get(REMAINING)
        return left


async def test_o7_a_refusal_says_when_it_would_pass_and_costs_nothing(
    start_sidecar: StartSidecar,
) -> None:
    sidecar = await start_sidecar(policy=limited({"name": "rpm", "per": "Minute", "requests": 2}))
    for left in ("1", "0"):
        async with sidecar.chat() as answer:
            assert answer.status == 200
            assert answer.headers["x-ratelimit-limit-requests"] == "2"
            assert answer.headers[REMAINING] == left
            assert answer.headers["x-ratelimit-reset-requests"].endswith("s")
            assert "x-ratelimit-limit-tokens" not in answer.headers
    for _ in range(3):
        async with sidecar.chat() as answer:
            assert answer.status == 429
            error = (await answer.json())["error"]
            assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
            assert "'rpm'" in error["message"]
            assert answer.headers["x-tidegate-dropped-reason"] == "rejected-rate-limit"
            assert 58 <= int(answer.headers["Retry-After"]) <= 61
            assert answer.headers[REMAINING] == "0"
    assert sidecar.outcomes(ALICE) == {"completed": 2, "rate_limited": 3}
    assert sidecar.runtime.tally.rate_limited == {"rpm": 3}
    last = sidecar.runtime.tally.tenants[ALICE].last_refusal
    assert last is not None
    assert (last.reason, last.limit) == ("rate_limited", "rpm")


async def test_o7_every_answer_carries_the_headers(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    limit = {"name": "rpm", "per": "Minute", "requests": 100, "tokens": 100_000}
    sidecar = await start_sidecar(policy=limited(limit))
    long = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 500}
    assert await remaining(sidecar, body=long) == "99"  # joined
    assert await remaining(sidecar, body={**long, "stream": True}) == "98"
    assert await remaining(sidecar, body={**long, "max_tokens": 1}) == "97"  # whole
    assert await remaining(sidecar, 400, body={**long, "nonsense": 1}) == "97"
    assert await remaining(sidecar, path="/v1/models", method="GET") == "97"
    assert await remaining(sidecar, 401, tenant=None, body=long) is None
    async with sidecar.request(body=long) as answer:
        # The engine reported 9 tokens for each of those that have ended.
        reserved = int(answer.headers["x-ratelimit-remaining-tokens"])
        assert 100_000 - 3 * 9 - 510 <= reserved <= 100_000 - 3 * 9 - 500
    engine.script = None


TPM = {"name": "tpm", "per": "Minute", "tokens": 100}


@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
async def test_o3_a_stream_is_charged_its_usage_though_nobody_asked_for_it(
    start_sidecar: StartSidecar, engine: FaultyEngine, told: bool
) -> None:
    policy = policy_document(tier={"rate_limits": [TPM], "output": {"default_tokens": 80}})
    sidecar = await start_sidecar(policy=policy)
    tokens = [chat_chunk(role="assistant"), *[chat_chunk("x")] * 80]
    usage = {"prompt_tokens": 7, "completion_tokens": 80, "total_tokens": 87}
    engine.script = event_stream([*tokens, *([usage_event(usage)] if told else []), DONE])
    async with sidecar.chat(stream=True) as answer:
        assert answer.status == 200
        assert await answer.read() == b"".join([*tokens, DONE])
    async with sidecar.chat(stream=True) as answer:
        assert answer.status == 429
        left = int(answer.headers["x-ratelimit-remaining-tokens"])
    assert left == 13 if told else 5 <= left < 20  # its prompt is estimated
    assert sidecar.outcomes(ALICE) == {"completed": 1, "rate_limited": 1}


async def test_o6_side_by_side_no_more_run_than_fit_and_the_rest_of_a_reservation_is_given_back(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar(policy=policy_document(tier={"rate_limits": [TPM]}))
    go = asyncio.Event()

    async def held(connection: Connection) -> None:
        await go.wait()
        await answer_well(engine.requests[-1])(connection)

    async def sent() -> tuple[int, int]:
        body = {"model": MODEL, "prompt": [1] * 8, "max_tokens": 50, "stream": True}
        async with sidecar.request("/v1/completions", body) as answer:
            await answer.read()
            return answer.status, int(answer.headers["x-ratelimit-remaining-tokens"])

    engine.script = held
    asked = [asyncio.create_task(sent()) for _ in range(5)]
    await until(lambda: sidecar.outcomes(ALICE) == {"rate_limited": 4} and engine.busy == 1)
    assert len(engine.requests) == 1
    go.set()
    answers = sorted(await asyncio.gather(*asked))
    assert answers == [(200, 100 - 58), *[(429, 100 - 58)] * 4]
    used = USAGE["total_tokens"]
    assert await sent() == (200, 100 - used - 58)
    assert sidecar.outcomes(ALICE) == {"completed": 2, "rate_limited": 4}


async def test_o6_a_limit_counts_its_endpoints_and_models_only(start_sidecar: StartSidecar) -> None:
    limits = (
        {"name": "chat", "per": "Hour", "requests": 1, "endpoints": ["chat"]},
        {"name": "other", "per": "Hour", "requests": 1, "models": ["another-model"]},
    )
    sidecar = await start_sidecar(policy=limited(*limits))
    completion = {"path": "/v1/completions", "body": {"model": MODEL, "prompt": "a"}}
    async with sidecar.chat() as answer:
        assert answer.status == 200
    assert await remaining(sidecar, **completion) is None
    async with sidecar.chat() as answer:
        assert answer.status == 429
    assert await remaining(sidecar, **completion) is None


async def test_o3_what_no_window_could_hold_is_413(start_sidecar: StartSidecar) -> None:
    sidecar = await start_sidecar(policy=limited({"name": "tpm", "per": "Minute", "tokens": 2_000}))
    async with sidecar.chat(max_tokens=2_100) as answer:
        assert answer.status == 413
        error = (await answer.json())["error"]
        assert error["code"] == "request_exceeds_limit"
        assert "'tpm'" in error["message"]
        assert "Retry-After" not in answer.headers
        assert answer.headers["x-ratelimit-remaining-tokens"] == "2000"
    async with sidecar.chat(max_tokens=100) as answer:
        assert answer.status == 200
    assert sidecar.runtime.tally.rate_limited == {"tpm": 1}


@pytest.mark.parametrize("on_exceed", ["Reject", "Truncate", "BestEffort"])
async def test_a_prompt_above_the_limit(
    start_sidecar: StartSidecar, engine: FaultyEngine, on_exceed: str
) -> None:
    tier = {"prompt_limit": {"max_tokens": 50, "on_exceed": on_exceed}}
    sidecar = await start_sidecar(policy=policy_document(tier=tier))
    body = {"model": MODEL, "prompt": [1] * 80, "max_tokens": 20}
    async with sidecar.request("/v1/completions", body) as answer:
        rejected = on_exceed == "Reject"
        assert answer.status == (413 if rejected else 200)
        if rejected:
            assert (await answer.json())["error"]["code"] == "prompt_too_long"
    tally = sidecar.runtime.tally.tiers["standard"]
    assert (tally.truncated, tally.best_effort) == (
        on_exceed == "Truncate",
        on_exceed == "BestEffort",
    )
    if not rejected:
        kept = json.loads(engine.requests[-1].body).get("truncate_prompt_tokens")
        assert kept == (50 if on_exceed == "Truncate" else None)


async def test_a_prompt_that_would_take_too_long(tmp_path: Path) -> None:
    """By the rate that was measured; before, nothing is refused on a guess."""
    limit = {"max_prefill_seconds": 0.001}
    async with (
        engine_in_process("--fake-ignore-eos") as engine,
        sidecar_under_test(
            tmp_path, engine, policy=policy_document(tier={"prompt_limit": limit})
        ) as sidecar,
    ):

        async def sent(tokens: int) -> tuple[int, str | None]:
            body = {"model": MODEL, "prompt": [1] * tokens, "max_tokens": 20}
            async with sidecar.request("/v1/completions", body) as answer:
                error = (await answer.json()).get("error")
                return answer.status, error and error["code"]

        scheduler, in_force = sidecar.runtime.dispatcher.scheduler, sidecar.runtime.in_force
        assert scheduler is not None
        assert in_force is not None
        assert await sent(4_000) == (200, None)
        assert await sent(16) == (413, "prompt_too_long")
        seconds = [scheduler.pace.prefill_seconds(tokens) for tokens in (16, 4_000)]
        between = PromptLimit(max_prefill_seconds=sum(seconds) / 2)
        policy = in_force.bundle.policy
        tiers = tuple(replace(tier, prompt_limit=between) for tier in policy.tiers)
        keys = replace(in_force.bundle.keys, generation=2)
        sidecar.runtime.apply(Bundle(replace(policy, generation=2, tiers=tiers), keys))
        # In this order: what is refused changes nothing of what was measured.
        assert await sent(4_000) == (413, "prompt_too_long")
        assert await sent(16) == (200, None)
        sidecar.check_other = False


async def test_an_engine_computes_no_more_than_the_truncated_prompt(tmp_path: Any) -> None:
    tier = {"prompt_limit": {"max_tokens": 50, "on_exceed": "Truncate"}}
    async with (
        engine_in_process() as engine,
        sidecar_under_test(tmp_path, engine, policy=policy_document(tier=tier)) as sidecar,
    ):
        body = {"model": MODEL, "prompt": [[1] * 80, [2] * 80], "max_tokens": 3}
        async with sidecar.request("/v1/completions", body, tenant=BOB) as answer:
            assert (await answer.json())["usage"]["prompt_tokens"] == 2 * 25


async def test_a_months_limit_survives_an_end_and_a_kill(
    start_sidecar: StartSidecar, engine: FaultyEngine, tmp_path: Path
) -> None:
    policy = limited({"name": "monthly", "per": "Month", "requests": 4})
    folder = tmp_path / "state"
    async with sidecar_under_test(tmp_path, engine, policy=policy, state_folder=folder) as first:
        assert await remaining(first, body=CHAT) == "3"
        await until(lambda: b'"requests":1' in _content(folder))
        # What a kill would leave now: the file as it is, while the process goes on.
        shutil.copytree(folder, tmp_path / "killed")
        assert await remaining(first, body=CHAT) == "2"
    killed = await start_sidecar(policy=policy, state_folder=tmp_path / "killed")
    assert await remaining(killed, body=CHAT) == "2"
    ended = await start_sidecar(policy=policy, state_folder=folder)
    assert await remaining(ended, body=CHAT) == "1"
    assert await remaining(ended, body=CHAT) == "0"
    async with ended.chat() as answer:
        assert answer.status == 429
        assert int(answer.headers["Retry-After"]) > 0


def _content(folder: Path) -> bytes:
    file = folder / "limits.jsonl"
    return file.read_bytes() if file.exists() else b""
