"""What a sidecar's process writes: records over drains and restarts, and a log without secrets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from support.fake_engine import until
from support.faulty_engine import DONE, FaultyEngine, chat_answer, chat_chunk
from support.faulty_upstream import Behaviour, answer, event_stream
from support.sidecar import ALICE, KEYS, chat_body, keys_document, policy_document, write

from tidegate.scheduling.contracts import UsageRecord, loads

pytestmark = pytest.mark.integration

PROMPT = "canary-of-the-prompt"
ANSWER = "canary-of-the-answer"
WRONG_KEY = "canary-of-a-key"


class Output:
    """A sidecar's process, where it listens, and what it wrote."""

    def __init__(self, child: asyncio.subprocess.Process, url: str, admin_url: str) -> None:
        self.child = child
        self.url = url
        self.admin_url = admin_url
        self.out = b""
        self.log = b""

    async def has_queued(self, requests: int) -> None:
        """Wait until so many requests wait."""
        async with aiohttp.ClientSession() as client, asyncio.timeout(30):
            while True:
                async with client.get(self.admin_url + "/status") as response:
                    tiers = (await response.json())["tiers"]
                if sum(tier["queued"] for tier in tiers) == requests:
                    return
                await asyncio.sleep(0.01)

    async def end(self) -> None:
        """SIGTERM, and what it wrote to its end."""
        if self.child.returncode is None:
            self.child.send_signal(signal.SIGTERM)
        out, log = await asyncio.wait_for(self.child.communicate(), 60)
        self.out, self.log = self.out + out, self.log + log


@contextlib.asynccontextmanager
async def process(folder: Path, engine: FaultyEngine, *flags: str) -> AsyncIterator[Output]:
    policy = write(folder / "policy.json", policy_document(tier={"max_in_flight": 1}))
    keys = write(folder / "keys.json", keys_document())
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tidegate_sidecar", f"--policy={policy}", f"--keys={keys}",
        f"--engine={engine.url}", "--port=0", "--admin-port=0", "--log-format=json", *flags,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "TIDEGATE_ENGINE_POLL_SECONDS": "0.05"},
    )  # fmt: skip
    assert child.stderr is not None
    log = b""
    try:
        async with asyncio.timeout(60):
            while b"tenants on" not in (line := await child.stderr.readline()):
                assert line, "it ended before it listened"
                log += line
        message = json.loads(line)["message"]
        tenants, admin = re.findall(r"127\.0\.0\.1:\d+", message)
        output = Output(child, f"http://{tenants}", f"http://{admin}")
        output.log = log + line
        yield output
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def post(url: str, body: bytes, key: str = KEYS[ALICE]) -> int:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{url}/v1/chat/completions", data=body, headers=headers) as response,
    ):
        await response.read()
        return response.status


def body(**extra: object) -> bytes:
    message = {"role": "user", "content": PROMPT}
    return json.dumps(chat_body(messages=[message], **extra)).encode()


async def test_each_request_is_recorded_once_over_a_drain_and_a_restart(
    tmp_path: Path, engine: FaultyEngine
) -> None:
    path = tmp_path / "usage.jsonl"
    drain = ("--drain-seconds=0.2", f"--usage-records={path}")
    async with process(tmp_path, engine, *drain) as first:
        assert await post(first.url, body()) == 200

        async def pause(_: int) -> None:
            await asyncio.sleep(0.1)

        engine.script = event_stream([*[chat_chunk(ANSWER)] * 20, DONE], between=pause)
        streaming = asyncio.create_task(post(first.url, body(stream=True)))
        await until(lambda: engine.busy == 1)
        waiting = asyncio.create_task(post(first.url, body()))
        await first.has_queued(1)
        await first.end()
        assert (await streaming, await waiting) == (200, 503)
    engine.script = None
    async with process(tmp_path, engine, *drain) as second:
        assert await post(second.url, body()) == 200
        await second.end()
    records = [loads(UsageRecord, line) for line in path.read_bytes().splitlines()]
    assert Counter(record.outcome for record in records) == {"completed": 3, "draining": 1}
    assert len({record.id for record in records}) == 4


async def test_neither_log_nor_records_hold_keys_or_content(
    tmp_path: Path, engine: FaultyEngine
) -> None:
    async def cut_off(connection: object) -> None:
        connection.writer.write(f"HTTP/1.1 200 OK\r\n\r\ndata: {ANSWER}".encode())  # type: ignore[attr-defined]
        connection.writer.close()  # type: ignore[attr-defined]

    scripts: list[Behaviour | None] = [
        None,
        answer(500, {"error": {"message": ANSWER}}),
        answer(200, ANSWER.encode()),
        answer(200, chat_answer(ANSWER)),
        cut_off,
        event_stream([chat_chunk(ANSWER), b"data: {" + ANSWER.encode() + b"\n\n"]),
    ]
    async with process(tmp_path, engine, "--usage-records=stdout") as sidecar:
        for script in scripts:
            engine.script = script
            await post(sidecar.url, body())
            with contextlib.suppress(aiohttp.ClientError):
                await post(sidecar.url, body(stream=True))
        for broken in (b"{" + PROMPT.encode(), body(nonsense=PROMPT), PROMPT.encode()):
            assert await post(sidecar.url, broken) == 400
        assert await post(sidecar.url, body(), WRONG_KEY) == 401
        await sidecar.end()
    lines = [json.loads(line) for line in sidecar.log.splitlines()]
    assert {line["kind"] for line in lines} == {"log"}
    records = [loads(UsageRecord, line) for line in sidecar.out.splitlines()]
    assert len(records) == 2 * len(scripts) + 4
    for secret in (PROMPT, ANSWER, WRONG_KEY, *KEYS.values()):
        assert secret not in (sidecar.out + sidecar.log).decode()
