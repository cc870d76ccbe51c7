"""A floods, B asks now and then: what would be late is refused at once, and only A's is."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.fake_engine import engine_in_process, until
from support.faulty_engine import MODEL
from support.sidecar import ALICE, BOB, SidecarUnderTest, policy_document, sidecar_under_test

pytestmark = pytest.mark.integration

FLOOD = 250
TARGET_SECONDS = 1.0


def policy() -> dict[str, Any]:
    return policy_document(
        tier={
            "slo_objectives": [{"metric": "TimeToFirstToken", "target_seconds": TARGET_SECONDS}],
            "rate_limits": [{"name": "daily", "per": "Day", "requests": 10_000}],
        },
        engine={"max_num_seqs": 4, "max_num_batched_tokens": 512},
    )


async def ask(sidecar: SidecarUnderTest, tenant: str) -> tuple[int, dict[str, str]]:
    body = {"model": MODEL, "prompt": [1] * 30, "max_tokens": 20}
    async with sidecar.request("/v1/completions", body, tenant=tenant) as answer:
        parsed = await answer.json()
        if answer.status != 200:
            assert answer.status == 429, parsed
            assert parsed["error"]["code"] == "throttled"
        return int(answer.status), dict(answer.headers)


async def test_a_flood_is_throttled_and_a_neighbour_is_not(tmp_path: Path) -> None:
    flags = ["--fake-ignore-eos", "--max-num-seqs", "4", "--max-num-batched-tokens", "512"]
    flags += ["--fake-time-scale", "3"]  # the flood would take it ten seconds
    async with (
        engine_in_process(*flags) as engine,
        sidecar_under_test(tmp_path, engine, policy=policy()) as sidecar,
    ):
        dispatcher = sidecar.runtime.dispatcher
        # The engine's rate is measured while something waits for it.
        await asyncio.gather(*(ask(sidecar, ALICE) for _ in range(24)))
        flood = [asyncio.create_task(ask(sidecar, ALICE)) for _ in range(FLOOD)]
        await until(lambda: dispatcher.in_hand >= 8)
        quiet = []
        for _ in range(5):
            quiet.append(await ask(sidecar, BOB))
        answers = await asyncio.gather(*flood)
        assert Counter(status for status, _ in quiet) == {200: 5}
        refused = [headers for status, headers in answers if status == 429]
        served = FLOOD - len(refused)
        assert refused
        assert served >= 4
        assert all(int(headers["Retry-After"]) >= 1 for headers in refused)
        # So that whoever asks again may come to another pod of the Service.
        assert {headers.get("Connection") for headers in refused} == {"close"}
        assert {headers.get("Connection") for _, headers in quiet} == {None}
        reasons = {headers["x-tidegate-dropped-reason"] for headers in refused}
        assert reasons == {"rejected-throttled"}
        await sidecar.settled()
        # Refusals cost nothing of a limit.
        outcomes = sidecar.outcomes(ALICE)
        _, headers = await ask(sidecar, ALICE)
        left = int(headers["x-ratelimit-remaining-requests"])
        assert left == 10_000 - outcomes["completed"] - 1
        assert outcomes["throttled"] >= len(refused)
        assert sidecar.outcomes(BOB) == {"completed": 5}
        slo = sidecar.runtime.tally.tiers["standard"].slo.counts
        ((_, count),) = slo.items()
        assert count.requests - count.good >= count.refused >= len(refused)
