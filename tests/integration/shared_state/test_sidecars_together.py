"""Two whole sidecars, each before an engine of its own, with a real server between them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_engine import until
from support.faulty_engine import FaultyEngine
from support.redis_server import RedisServer
from support.sidecar import ALICE, KEYS, SidecarUnderTest, policy_document, sidecar_under_test

pytestmark = pytest.mark.integration


@contextlib.asynccontextmanager
async def two_sidecars(
    folder: Path, server: RedisServer, deadline_ms: float, **limit: Any
) -> AsyncIterator[list[SidecarUnderTest]]:
    """Both with one rate limit, in the common counts of ``server``."""
    limits = [{"name": "limit", "per": "Hour", **limit}]
    policy = policy_document(version=2, tier={"rate_limits": limits})
    policy["shared_state"] = {"address": server.address}
    async with contextlib.AsyncExitStack() as stack:
        both = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            engine = await stack.enter_async_context(FaultyEngine())
            sidecar = sidecar_under_test(
                folder / name, engine, policy=policy, shared_state_deadline_ms=deadline_ms
            )
            both.append(await stack.enter_async_context(sidecar))
        for each in both:
            await until(lambda each=each: each.runtime.shared_state.status.available, 30.0)
        yield both
        for each in both:  # whose handlers would count as left behind by the other
            await each.ends_well()
            await each.client.close()


async def read(sidecar: SidecarUnderTest, path: str) -> str:
    async with sidecar.client.get(sidecar.admin_url + path) as answer:
        assert answer.status == 200
        return str(await answer.text())


async def sent(sidecar: SidecarUnderTest, **body: Any) -> tuple[int, dict[str, str]]:
    async with sidecar.chat(**body) as answer:
        await answer.read()
        return answer.status, dict(answer.headers)


async def test_a_limit_is_one_limit_whatever_sidecar_is_asked(
    server: RedisServer, tmp_path: Path
) -> None:
    async with two_sidecars(tmp_path, server, 5_000.0, requests=4) as both:
        got = [await sent(both[number % 2]) for number in range(6)]
        assert [status for status, _ in got] == [200] * 4 + [429] * 2
        remaining = [headers["x-ratelimit-remaining-requests"] for _, headers in got]
        assert remaining == ["3", "2", "1", "0", "0", "0"]
        assert 3_500 < int(got[5][1]["Retry-After"]) <= 3_660
        assert '"available":true' in await read(both[0], "/status")
        metrics = await read(both[1], "/metrics")
        assert "tidegate_shared_state_available 1.0" in metrics
        assert "tidegate_shared_state_local_total 0.0" in metrics
        # What is refused otherwise takes nothing of the limit.
        both[0].runtime.begin_drain()
        assert (await sent(both[0]))[0] == 503
        for each in both:
            await until(lambda each=each: not each.runtime.shared_state.pending)
        stored = " ".join(server.client.keys("*"))
        assert KEYS[ALICE] not in stored
        assert server.client.keys("tidegate:held:*") == []


async def test_a_paused_server_holds_up_no_request_and_each_counts_for_its_part(
    server: RedisServer, tmp_path: Path
) -> None:
    async with two_sidecars(tmp_path, server, 100.0, requests=100) as both:
        for each in both:
            async with each.client.put(each.admin_url + "/pods?ready=2") as answer:
                assert answer.status == 200
            await sent(each)
        server.pause()
        for each in both:
            while each.runtime.shared_state.status.available:
                assert (await sent(each))[0] == 200
        passed = 0
        for each in both:
            while (await sent(each))[0] == 200:
                passed += 1
        assert 80 <= passed <= 98
        assert '"available":false' in await read(both[0], "/status")
        assert "tidegate_shared_state_available 0.0" in await read(both[0], "/metrics")
        server.resume()
        for each in both:
            state = each.runtime.shared_state
            await until(lambda state=state: state.status.available and not state.pending, 30.0)
        counted = server.client.hgetall(f"tidegate:limit:{{{ALICE}}}:limit:Hour")
        requests = sum(int(value) for name, value in counted.items() if name[0] == "r")
        served = sum(each.outcomes(ALICE)["completed"] for each in both)
        assert requests == served
        async with both[0].client.put(both[0].admin_url + "/pods?ready=none") as answer:
            assert answer.status == 400
