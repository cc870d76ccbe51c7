"""A sidecar in the test's own process, and the oracle that every proxy test ends with."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from support.accounting import Accounting, Engine
from support.fake_engine import until
from support.faulty_engine import MODEL, FaultyEngine
from tidegate_sidecar.auth import Identity
from tidegate_sidecar.identity_keys import IDENTITY_HEADER
from tidegate_sidecar.server import Sidecar
from tidegate_sidecar.settings import Settings

from tidegate.scheduling.contracts import Task

KEYS = {"team-a/alice": "tg-key-of-alice", "team-b/bob": "tg-key-of-bob"}
ALICE, BOB = KEYS

Json = dict[str, Any]


def sha256(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def policy_document(generation: int = 1, **members: Any) -> Json:
    """A policy of one tier and two tenants; ``tier`` members go into the tier."""
    tier = {"name": "standard", **members.pop("tier", {})}
    return {
        "version": 1,
        "generation": generation,
        "pool": "team-a/chat",
        "model": {"name": MODEL},
        "tiers": [tier],
        "tenants": [{"name": name, "tier": "standard"} for name in KEYS],
        **members,
    }


def keys_document(generation: int = 1, keys: dict[str, str] = KEYS) -> Json:
    """The keys of the tenants."""
    digests = {sha256(key): tenant for tenant, key in keys.items()}
    return {"version": 1, "generation": generation, "keys": digests}


def write(path: Path, document: Json) -> Path:
    """Write JSON at once, as a rename does."""
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps(document))
    scratch.rename(path)
    return path


class SidecarUnderTest:
    """A running sidecar with a client of each of its ports."""

    def __init__(
        self,
        sidecar: Sidecar,
        client: aiohttp.ClientSession,
        engine: Engine,
        *,
        check_other: bool = True,
    ) -> None:
        self.sidecar = sidecar
        self.check_other = check_other
        """Whether another tenant is served in the end; not where it has no key or no place."""
        self.runtime = sidecar.runtime
        self.client = client
        self.url = f"http://127.0.0.1:{sidecar.port}"
        self.admin_url = f"http://127.0.0.1:{sidecar.admin_port}"
        self._accounting = Accounting(sidecar.runtime, engine)

    def request(
        self,
        path: str = "/v1/chat/completions",
        body: Json | bytes | None = None,
        *,
        tenant: str | None = ALICE,
        method: str = "POST",
        headers: dict[str, str] | None = None,
    ) -> Any:
        """A request, as aiohttp's context manager."""
        sent = {"Content-Type": "application/json", **(headers or {})}
        if tenant is not None:
            sent.setdefault("Authorization", f"Bearer {KEYS[tenant]}")
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        return self.client.request(method, self.url + path, data=data, headers=sent)

    def chat(
        self, *, tenant: str = ALICE, headers: dict[str, str] | None = None, **extra: Any
    ) -> Any:
        """A small chat request."""
        return self.request(body=chat_body(**extra), tenant=tenant, headers=headers)

    def outcomes(self, tenant: str | None = None) -> dict[str, int]:
        """Ended requests by outcome: of a tenant, or of all and of none."""
        tally = self.runtime.tally
        if tenant is not None:
            counts = tally.tenants[tenant].outcomes
        else:
            counts = dict(tally.unknown)
            for row in tally.tenants.values():
                for outcome, count in row.outcomes.items():
                    counts[outcome] = counts.get(outcome, 0) + count
        return {outcome.value: count for outcome, count in counts.items()}

    async def settled(self) -> None:
        """The accounting oracle: :mod:`support.accounting`."""
        await self._accounting.settled()

    async def ends_well(self) -> None:
        """The oracle holds, also after the next request of another tenant, which is served."""
        if self.runtime.dispatcher.scheduler is None:
            return
        await self.settled()
        if self.check_other and self.runtime.ready:
            await self._another_is_served()
            await self.settled()

    async def _another_is_served(self) -> None:
        in_force = self.runtime.in_force
        assert in_force is not None
        embeds = in_force.model.task is Task.EMBED
        path = "/v1/embeddings" if embeds else "/v1/completions"
        prompt = {"input": "x"} if embeds else {"prompt": "x", "max_tokens": 1}
        body = json.dumps({"model": in_force.model.name, **prompt}).encode()
        vouched = f"Authorization: Bearer {KEYS[BOB]}"
        if (keys := self.runtime.callers.keys) is not None:
            identity = Identity(BOB, sha256(KEYS[BOB]))
            vouched = f"{IDENTITY_HEADER}: {keys.sign(identity, 'another', body, time.time())}"
        status, _, answer = await speak(self, body, path=path, authorization=[vouched])
        assert status == 200, answer


def raw_head(
    *lines: str,
    method: str = "POST",
    path: str = "/v1/chat/completions",
    content_type: str = "application/json",
    authorization: Sequence[str] = (f"Authorization: Bearer {KEYS[ALICE]}",),
) -> bytes:
    """The head of a request, for a test that speaks over a raw socket."""
    head = [f"{method} {path} HTTP/1.1", "Host: x", *authorization]
    if content_type:
        head.append(f"Content-Type: {content_type}")
    return "\r\n".join([*head, *lines, "", ""]).encode("latin-1")


async def speak(
    sidecar: SidecarUnderTest, body: bytes | None = None, *lines: str, **head: Any
) -> tuple[int, dict[str, str], Any]:
    """:func:`speak_to` a sidecar."""
    return await speak_to(sidecar.sidecar.port, body, *lines, **head)


async def speak_to(
    port: int, body: bytes | None = None, *lines: str, **head: Any
) -> tuple[int, dict[str, str], Any]:
    """One request over a raw socket, closed after it: (status, headers, JSON or None)."""
    data = json.dumps(chat_body()).encode() if body is None else body
    if not any(line.lower().startswith("transfer-encoding") for line in lines):
        lines = (*lines, f"Content-Length: {len(data)}")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw_head("Connection: close", *lines, **head) + data)
    try:
        async with asyncio.timeout(20):
            whole = await reader.read()
    finally:
        writer.close()
    first, _, rest = whole.partition(b"\r\n\r\n")
    status, *pairs = first.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, value in (pair.split(": ", 1) for pair in pairs)}
    return int(status.split()[1]), headers, json.loads(rest) if rest else None


def chat_body(**extra: Any) -> Json:
    """A small chat body."""
    return {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}], **extra}


@contextlib.asynccontextmanager
async def sidecar_under_test(
    folder: Path,
    engine: Engine,
    *,
    policy: Json | None = None,
    keys: Json | None = None,
    policy_path: Path | None = None,
    keys_path: Path | None = None,
    wait_ready: bool = True,
    check_other: bool = True,
    **settings: Any,
) -> AsyncIterator[SidecarUnderTest]:
    """A sidecar before ``engine``; on exit it ends well and no task is left.

    A faulty engine is sound by then. A test that ended it well itself has closed its client.
    """
    before = asyncio.all_tasks()
    if policy_path is None:
        policy_path = write(folder / "policy.json", policy or policy_document())
    if keys_path is None:
        keys_path = write(folder / "keys.json", keys or keys_document())
    sidecar = Sidecar(
        Settings(
            policy=policy_path,
            keys=keys_path,
            engine=engine if isinstance(engine, str) else engine.url,
            port=0,
            admin_port=0,
            **{
                "engine_poll_seconds": 0.05,
                "policy_poll_seconds": 0.05,
                "leaving_seconds": 0.0,
                **settings,
            },
        )
    )
    await sidecar.start()
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=60)
    try:
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as client:
            under_test = SidecarUnderTest(sidecar, client, engine, check_other=check_other)
            if wait_ready:
                await until(lambda: sidecar.runtime.ready)
            yield under_test
            if not client.closed:
                if isinstance(engine, FaultyEngine):
                    engine.script = None
                await under_test.ends_well()
    finally:
        await sidecar.stop()
    with contextlib.suppress(TimeoutError):
        await until(lambda: not _left(before), 5.0)
    assert not _left(before)


def _left(before: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """Tasks of the sidecar that are still there."""
    return {
        task
        for task in asyncio.all_tasks() - before
        if "tidegate_sidecar" in str(task.get_coro()) or "RequestHandler" in str(task.get_coro())
    }
