"""A router before a pool that runs, and away again: no client of before is refused for it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_engine import until
from support.faulty_engine import DONE, FaultyEngine, chat_chunk
from support.faulty_upstream import event_stream
from support.sidecar import (
    ALICE,
    KEYS,
    SidecarUnderTest,
    chat_body,
    keys_document,
    policy_document,
    sidecar_under_test,
    speak,
)
from tidegate_sidecar import callers
from tidegate_sidecar.auth import Identity
from tidegate_sidecar.flags import SettingsError
from tidegate_sidecar.identity_keys import IDENTITY_HEADER, IdentityKeys
from tidegate_sidecar.settings import Settings

pytestmark = pytest.mark.integration

BODY = json.dumps(chat_body()).encode()


def pool_policy(**members: Any) -> dict[str, Any]:
    """Of engines with one seat."""
    return policy_document(version=2, engine={"max_num_seqs": 1}, **members)


class Pod:
    """A sidecar of a pool, and a router's keys."""

    def __init__(self, sidecar: SidecarUnderTest, keys: IdentityKeys) -> None:
        self.sidecar, self.keys = sidecar, keys
        self.generation = 1
        self.handed_back: int | None = None
        self._requests = 0

    async def routed(self, routed: bool) -> None:
        """The operator's next policy."""
        self.generation += 1
        bundle = {
            "policy": pool_policy(generation=self.generation, routed=routed),
            "keys": keys_document(generation=self.generation),
        }
        async with self.sidecar.client.put(f"{self.sidecar.admin_url}/policy", json=bundle) as said:
            assert said.status == 200, await said.text()

    async def unsigned(self, **extra: Any) -> tuple[int, bool]:
        """Status of a request with an API key, and whether its connection goes on."""
        async with self.sidecar.chat(**extra) as answer:
            await answer.read()
            return answer.status, answer.headers.get("Connection") != "close"

    async def by_new_connection(self) -> int:
        status, _, _ = await speak(self.sidecar)
        return status

    async def signed(self) -> tuple[int, bool]:
        digest = hashlib.sha256(KEYS[ALICE].encode()).hexdigest()
        self._requests += 1
        signature = self.keys.sign(
            Identity(ALICE, digest), f"id-{self._requests}", BODY, time.time()
        )
        headers = {IDENTITY_HEADER: signature}
        async with self.sidecar.request(body=BODY, tenant=None, headers=headers) as answer:
            await answer.read()
            return answer.status, answer.headers.get("Connection") != "close"

    async def hand_back(self) -> int:
        """Status; who was queued is handed back, if anybody is."""
        url = f"{self.sidecar.admin_url}/hand-back?requests=1"
        async with self.sidecar.client.post(url) as answer:
            self.handed_back = (await answer.json()).get("handed_back")
            return int(answer.status)


@pytest.fixture
async def pod(engine: FaultyEngine, tmp_path: Path) -> AsyncIterator[Pod]:
    path = tmp_path / "identity"
    path.write_text(secrets.token_hex(32))
    async with sidecar_under_test(
        tmp_path, engine, policy=pool_policy(), pool_identity_keys=path
    ) as sidecar:
        yield Pod(sidecar, IdentityKeys(path))


async def test_without_a_router_both_are_served(pod: Pod) -> None:
    assert await pod.unsigned() == (200, True)
    assert await pod.signed() == (200, True)
    assert await pod.hand_back() == 409
    status, _, body = await speak(pod.sidecar, authorization=[])
    assert (status, body["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("stream", [False, True])
async def test_who_comes_by_the_old_way_is_served_and_sent_the_new_one(
    pod: Pod, stream: bool
) -> None:
    assert await pod.unsigned() == (200, True)
    await pod.routed(True)
    assert await pod.unsigned(stream=stream) == (200, False)
    assert await pod.by_new_connection() == 200  # a node that knows the Service as it was
    assert await pod.signed() == (200, True)
    assert await pod.hand_back() == 409  # its client could not be sent to another pod
    await pod.routed(False)
    assert await pod.unsigned(stream=stream) == (200, True)


async def test_then_only_what_a_router_signed(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "UNSIGNED_SECONDS", 0.0)
    assert await pod.unsigned() == (200, True)  # and its connection stays open
    await pod.routed(True)
    assert await pod.unsigned() == (200, False)
    assert (await pod.unsigned())[0] == 401
    assert await pod.by_new_connection() == 401
    assert await pod.signed() == (200, True)
    assert await pod.hand_back() == 200
    await pod.routed(True)  # another change of the policy begins nothing anew
    assert (await pod.unsigned())[0] == 401
    await pod.routed(False)
    assert await pod.unsigned() == (200, True)
    assert await pod.signed() == (200, True)


async def test_who_waits_unsigned_is_not_handed_back(
    pod: Pod, engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody stands before such a request who would send it to another pod."""
    monkeypatch.setattr(callers, "UNSIGNED_SECONDS", 0.0)
    dispatcher = pod.sidecar.runtime.dispatcher
    release = asyncio.Event()

    async def held(number: int) -> None:
        await release.wait()

    engine.script = event_stream([chat_chunk("late"), DONE], between=held)
    asked = [asyncio.create_task(pod.unsigned(stream=True)) for _ in range(8)]
    await until(lambda: dispatcher.in_hand == 8)
    assert dispatcher.scheduler is not None
    assert dispatcher.scheduler.queued()
    await pod.routed(True)
    assert (await pod.hand_back(), pod.handed_back) == (200, 0)
    release.set()
    assert {status for status, _ in await asyncio.gather(*asked)} == {200}


@pytest.mark.parametrize("value", ["", ".", "a.\xff", "\xff.a", "a.b.c", "a.\u00e9"])
async def test_a_signature_of_whatever_characters_is_a_wrong_one(pod: Pod, value: str) -> None:
    status, _, body = await speak(pod.sidecar, authorization=[f"{IDENTITY_HEADER}: {value}"])
    assert (status, body["error"]["code"]) == (401, "invalid_api_key")


async def test_a_process_that_starts_behind_a_router_asks_for_a_signature_at_once(
    engine: FaultyEngine, tmp_path: Path
) -> None:
    path = tmp_path / "identity"
    path.write_text(secrets.token_hex(32))
    async with sidecar_under_test(
        tmp_path, engine, policy=pool_policy(routed=True), pool_identity_keys=path
    ) as sidecar:
        pod = Pod(sidecar, IdentityKeys(path))
        assert (await pod.unsigned())[0] == 401
        assert await pod.signed() == (200, True)


def test_both_kinds_of_keys_are_refused() -> None:
    path = Path("unread")
    with pytest.raises(SettingsError, match="only one"):
        Settings(
            policy=path,
            keys=path,
            engine="uds:/e",
            identity_keys=path,
            pool_identity_keys=path,
        )
