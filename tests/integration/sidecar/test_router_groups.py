"""A router before engine groups: home, spill, away, fallback, and the way back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from support.fake_engine import until
from support.faulty_engine import DONE, FaultyEngine, chat_chunk
from support.faulty_upstream import event_stream
from support.router_fleet import SEATS, Fleet
from support.sidecar import (
    Json,
    chat_body,
    keys_document,
    policy_document,
    sidecar_under_test,
    write,
)
from tidegate_sidecar.router import steadiness
from tidegate_sidecar.router.edge import GROUP_HEADER

pytestmark = pytest.mark.integration

HOMES = {"ns/talk": "chat", "ns/code": "code", "ns/misc": "plain"}
"""Tenants by their home; each is alone in a tier of its own short name."""
TALK, CODE, MISC = HOMES
KEYS = {tenant: f"key-of-{tenant}" for tenant in HOMES}
FALLBACK = "fallback"
GROUPS = (*HOMES.values(), FALLBACK)


def tier(tenant: str) -> str:
    return tenant.partition("/")[2]


def policy(*, stays: str | None = None) -> Json:
    return policy_document(
        version=2,
        tiers=[{"name": tier(tenant)} for tenant in HOMES],
        tenants=[{"name": tenant, "tier": tier(tenant)} for tenant in HOMES],
        engine_groups=[
            {
                "name": home,
                "tiers": [tier(tenant)],
                "spill": "Never" if home == stays else "WhenIdle",
            }
            for tenant, home in HOMES.items()
        ],
        fallback={"name": FALLBACK, "tiers": [tier(TALK)]},
    )


class Groups:
    """One pod in each group."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def engine(self, group: str) -> FaultyEngine:
        return self.fleet.pods[GROUPS.index(group)][0]

    async def serving(self, *groups: str) -> None:
        """These serve from here on, as the router knows, and no other does."""
        for group in GROUPS:
            self.engine(group).healthy = group in groups
        pods = self.fleet.router.pods
        await until(lambda: {pod.group for pod in pods.serving()} == set(groups))

    async def served_by(self, tenant: str) -> str:
        """The group whose engine answered, which the answer names unless it is home."""
        before = {group: len(self.engine(group).requests) for group in GROUPS}
        async with self.fleet.chat(tenant) as answer:
            await answer.read()
            assert answer.status == 200
            told = answer.headers.get(GROUP_HEADER)
        (group,) = (g for g in GROUPS if len(self.engine(g).requests) > before[g])
        assert told == (None if group == HOMES[tenant] else group)
        return group

    async def refused(self, tenant: str) -> aiohttp.ClientResponse:
        async with self.fleet.chat(tenant) as answer:
            await answer.read()
        return answer

    async def placed(self) -> dict[tuple[str, str], float]:
        """The counts of the router's metric that are not zero."""
        url = f"http://127.0.0.1:{self.fleet.router.admin_port}/metrics"
        async with self.fleet.client.get(url) as answer:
            text = await answer.text()
        found = {}
        for line in text.splitlines():
            if line.startswith("tidegate_router_placed_requests_total{"):
                labels, value = line.rsplit(" ", 1)
                group, placement = (part.split('"')[1] for part in labels.split(","))
                found[group, placement] = float(value)
        assert {group for group, _ in found} == set(GROUPS), "each from the start"
        return {key: value for key, value in found.items() if value}


async def made(tmp_path: Path, stack: AsyncExitStack, **terms: Any) -> Groups:
    pods = await stack.enter_async_context(AsyncExitStack())
    edge = await stack.enter_async_context(AsyncExitStack())
    fleet = Fleet(tmp_path, pods, edge, policy(**terms), KEYS)
    await fleet.start()
    for group in GROUPS:
        await fleet.add_pod(group)
    await fleet.tell(*range(len(GROUPS)))
    return Groups(fleet)


@pytest.fixture
async def groups(tmp_path: Path) -> AsyncIterator[Groups]:
    async with AsyncExitStack() as stack:
        yield await made(tmp_path, stack)


async def test_each_tier_is_served_at_home_then_elsewhere_then_by_the_fallback_and_comes_back(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steadiness, "LASTING_SECONDS", 0.0)
    for tenant, home in HOMES.items():
        assert await groups.served_by(tenant) == home
    assert await groups.placed() == {(home, "home"): 1 for home in HOMES.values()}

    await groups.serving("code", "plain", FALLBACK)
    assert await groups.served_by(TALK) in ("code", "plain")
    assert await groups.served_by(CODE) == "code"

    await groups.serving(FALLBACK)
    assert await groups.served_by(TALK) == FALLBACK
    for tenant in (CODE, MISC):
        answer = await groups.refused(tenant)
        assert answer.status == 503
        assert int(answer.headers["Retry-After"]) >= 1
        assert answer.headers["x-tidegate-dropped-reason"] == "rejected-no-engine"
    assert (await groups.placed())[FALLBACK, "fallback"] == 1

    await groups.serving("plain", FALLBACK)
    assert await groups.served_by(TALK) == "plain"
    assert await groups.served_by(CODE) == "plain"
    await groups.serving(*GROUPS)
    for tenant, home in HOMES.items():
        assert await groups.served_by(tenant) == home


async def until_served_by(groups: Groups, tenant: str, home: str) -> None:
    """As soon as home has counted as busy for long enough."""
    async with asyncio.timeout(30):
        while await groups.served_by(tenant) != home:  # each answer takes a moment
            pass


async def test_a_busy_home_spills_and_what_waits_there_follows(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steadiness, "REST_SECONDS", 0.2)
    monkeypatch.setattr(steadiness, "LASTING_SECONDS", 0.0)
    release = asyncio.Event()

    async def held(number: int) -> None:
        await release.wait()

    groups.engine("chat").script = event_stream([chat_chunk("late"), DONE], between=held)
    fleet, chat = groups.fleet, groups.fleet.pods[0][1].runtime.dispatcher
    await groups.serving("chat", FALLBACK)
    asked = [asyncio.create_task(answered(fleet, TALK)) for _ in range(SEATS + 2)]
    await until(lambda: chat.in_hand == SEATS + 2)
    await groups.serving(*GROUPS)
    await until(lambda: sum(task.done() for task in asked) == 2)
    assert groups.engine("chat").busy == chat.in_hand == SEATS
    assert await groups.served_by(TALK) in ("code", "plain"), "home has a request for each seat"
    assert await groups.served_by(CODE) == "code", "who is at home elsewhere stays there"
    release.set()
    told = await asyncio.gather(*asked)
    assert {status for status, _ in told} == {200}
    assert sum(group in ("code", "plain") for _, group in told) == 2
    groups.engine("chat").script = None
    await until_served_by(groups, TALK, "chat")


async def answered(fleet: Fleet, tenant: str) -> tuple[int, str | None]:
    async with fleet.chat(tenant, stream=True, max_tokens=4) as answer:
        await answer.read()
        return answer.status, answer.headers.get(GROUP_HEADER)


async def test_a_group_that_keeps_its_requests_lets_them_wait_at_home(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        groups = await made(tmp_path, stack, stays="chat")
        release = asyncio.Event()

        async def held(number: int) -> None:
            await release.wait()

        groups.engine("chat").script = event_stream([chat_chunk("late"), DONE], between=held)
        fleet = groups.fleet
        asked = [asyncio.create_task(answered(fleet, TALK)) for _ in range(SEATS + 3)]
        chat = fleet.pods[0][1].runtime.dispatcher
        await until(lambda: chat.in_hand == SEATS + 3)
        for _ in range(4):
            await fleet.router.pods.look()
        assert chat.in_hand == SEATS + 3
        assert fleet.router.pods.handed_back == 0
        release.set()
        assert set(await asyncio.gather(*asked)) == {(200, None)}


async def test_usage_records_and_engine_terms_are_those_of_the_group(tmp_path: Path) -> None:
    """A pod of a group divides its cache by its own parts, drafts for nobody who is at home
    elsewhere, and its records name it."""
    document = policy(stays="chat") | {
        "kv_pools": [
            {"name": "talk", "tiers": ["talk"], "percent": 60},
            {"name": "rest", "tiers": ["code", "misc"], "percent": 40},
        ]
    }
    document["engine_groups"][1]["kv_pools"] = [
        {"name": "rest", "tiers": ["code", "misc"], "percent": 100}
    ]
    records = tmp_path / "records.jsonl"
    async with FaultyEngine() as engine:
        engine.metrics = (
            'vllm:cache_config_info{block_size="16",num_gpu_blocks="1001"} 1.0\n'
            "vllm:num_requests_running 0\n"
        )
        async with sidecar_under_test(
            tmp_path,
            engine,
            policy=document,
            keys_path=write(tmp_path / "the-keys.json", keys_document(keys=KEYS)),
            engine_group="code",
            usage_records=str(records),
            check_other=False,
        ) as pod:
            in_force = pod.runtime.in_force
            assert in_force is not None
            drafts = {t.name: t.draft_tokens for t in in_force.policy.tiers}
            assert drafts == {"talk": 0, "code": None, "misc": 0}
            await until(lambda: bool(pod.runtime.dispatcher.in_flight.places.in_force))
            async with pod.client.get(f"{pod.admin_url}/status") as answer:
                pools = {p["name"]: p["nominal_blocks"] for p in (await answer.json())["kv_pools"]}
            assert pools["rest"] == 1000
            headers = {"Authorization": f"Bearer {KEYS[CODE]}"}
            async with pod.request(body=chat_body(), tenant=None, headers=headers) as answer:
                assert answer.status == 200
    (record,) = [orjson.loads(line) for line in records.read_bytes().splitlines()]
    assert record["engine_group"] == "code"
