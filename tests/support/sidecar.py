"""A sidecar in the test's own process, and the oracle that every proxy test ends with."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from support.fake_engine import until
from support.faulty_engine import MODEL
from tidegate_sidecar.recent_requests import MAX_ENDED
from tidegate_sidecar.server import Sidecar
from tidegate_sidecar.settings import Settings

from tidegate.scheduling.outcomes import Outcome

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

    def __init__(self, sidecar: Sidecar, client: aiohttp.ClientSession) -> None:
        self.sidecar = sidecar
        self.runtime = sidecar.runtime
        self.client = client
        self.url = f"http://127.0.0.1:{sidecar.port}"
        self.admin_url = f"http://127.0.0.1:{sidecar.admin_port}"

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
        """The accounting oracle: nothing in flight or queued, no exchange open, books even."""
        runtime = self.runtime
        dispatcher = runtime.dispatcher
        scheduler, gate = dispatcher.scheduler, dispatcher.in_flight.gate
        assert scheduler is not None
        assert gate is not None
        with contextlib.suppress(TimeoutError):
            await until(
                lambda: dispatcher.in_hand == 0 and _probes_only(runtime.engine.open_exchanges), 5.0
            )
        assert dispatcher.in_hand == 0
        assert scheduler.queued() == 0
        assert scheduler.in_flight() == 0
        assert gate.not_started == 0
        for tenant in scheduler.tenant_snapshots(dispatcher.loop.time()):
            assert (tenant.queued, tenant.queued_bytes, tenant.running) == (0, 0, 0)
        self._recorded_once()

    def _recorded_once(self) -> None:
        """One record for each request that was counted, with the tokens that were billed."""
        runtime, tally = self.runtime, self.runtime.tally
        assert not runtime.reports.open
        records = runtime.reports.recent.records()
        if len(records) == MAX_ENDED:
            return  # older ones are forgotten
        counted: Counter[tuple[str, str]] = Counter()
        billed: Counter[str] = Counter()
        for record in records:
            name = record.tenant if record.tier else ""
            counted[name, record.outcome] += 1
            billed[name] += record.prompt_tokens + record.output_tokens
        rows = {"": tally.unknown, **{name: row.outcomes for name, row in tally.tenants.items()}}
        for name, outcomes in rows.items():
            for outcome in Outcome:
                assert counted[name, outcome.value] == outcomes.get(outcome, 0), (name, outcome)
        scheduler = runtime.dispatcher.scheduler
        assert scheduler is not None
        for tenant in scheduler.tenant_snapshots(runtime.dispatcher.loop.time()):
            assert billed[tenant.name] <= tenant.service_tokens_total


def _probes_only(open_exchanges: int) -> bool:
    """The engine's own watch has at most one exchange at a time."""
    return open_exchanges <= 1


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
    """One request over a raw socket, closed after it: (status, headers, JSON or None)."""
    data = json.dumps(chat_body()).encode() if body is None else body
    if not any(line.lower().startswith("transfer-encoding") for line in lines):
        lines = (*lines, f"Content-Length: {len(data)}")
    reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.sidecar.port)
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
    engine_url: str,
    *,
    policy: Json | None = None,
    keys: Json | None = None,
    policy_path: Path | None = None,
    keys_path: Path | None = None,
    wait_ready: bool = True,
    **settings: Any,
) -> AsyncIterator[SidecarUnderTest]:
    """A sidecar before ``engine_url``; on exit the oracle holds and no task is left."""
    before = asyncio.all_tasks()
    if policy_path is None:
        policy_path = write(folder / "policy.json", policy or policy_document())
    if keys_path is None:
        keys_path = write(folder / "keys.json", keys or keys_document())
    sidecar = Sidecar(
        Settings(
            policy=policy_path,
            keys=keys_path,
            engine=engine_url,
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
            under_test = SidecarUnderTest(sidecar, client)
            if wait_ready:
                await until(lambda: sidecar.runtime.ready)
            yield under_test
            if sidecar.runtime.dispatcher.scheduler is not None:
                await under_test.settled()
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
