"""A sidecar's process that is killed takes its rate limits' counters up where they were saved.

The bound (``limit_store``, design of rate limits): what is lost is what was taken since the last
write, and counters are written every second while they change; so what is settled exceeds a limit
by at most what was taken in that second.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from support.fake_engine import until
from support.faulty_engine import FaultyEngine
from support.sidecar import ALICE, KEYS, chat_body, keys_document, policy_document, write

pytestmark = pytest.mark.integration

LIMITS = [
    {"name": "rpm", "per": "Minute", "requests": 6},
    {"name": "monthly", "per": "Month", "tokens": 1_000},
]
SAVED = "limits.jsonl"


@contextlib.asynccontextmanager
async def process(
    folder: Path, engine: FaultyEngine
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A sidecar with a state folder, as its pod has it, and the URL of its tenants' port."""
    policy = write(folder / "policy.json", policy_document(tier={"rate_limits": LIMITS}))
    keys = write(folder / "keys.json", keys_document())
    state = {"TIDEGATE_STATE_FOLDER": str(folder / "state"), "TIDEGATE_ENGINE_POLL_SECONDS": "0.05"}
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tidegate_sidecar", f"--policy={policy}", f"--keys={keys}",
        f"--engine={engine.url}", "--port=0", "--admin-port=0", "--log-format=json",
        stderr=asyncio.subprocess.PIPE, env={**os.environ, **state},
    )  # fmt: skip
    assert child.stderr is not None
    try:
        async with asyncio.timeout(60):
            while b"tenants on" not in (line := await child.stderr.readline()):
                assert line, "it ended before it listened"
        tenants, _ = re.findall(r"127\.0\.0\.1:\d+", json.loads(line)["message"])
        yield child, f"http://{tenants}"
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def ask(client: aiohttp.ClientSession, url: str) -> tuple[int, int, int]:
    """Status, requests left, and tokens served."""
    headers = {"Authorization": f"Bearer {KEYS[ALICE]}"}
    async with client.post(
        f"{url}/v1/chat/completions", json=chat_body(max_tokens=10), headers=headers
    ) as answer:
        left = int(answer.headers["x-ratelimit-remaining-requests"])
        usage = (await answer.json()).get("usage") or {"total_tokens": 0}
        return answer.status, left, usage["total_tokens"]


def saved(folder: Path) -> dict[str, list[tuple[int, int]]]:
    """Requests and tokens in each slice of each limit, as the file has them."""
    file = folder / "state" / SAVED
    lines = file.read_bytes().split(b"\n")[1:] if file.exists() else []
    return {
        window["limit"]: [(part["requests"], part["tokens"]) for part in window["slices"]]
        for line in lines
        for window in json.loads(line)
    }


async def test_a_kill_loses_no_count_that_was_saved(tmp_path: Path, engine: FaultyEngine) -> None:
    async with aiohttp.ClientSession() as client:
        async with process(tmp_path, engine) as (killed, url):
            answers = [await ask(client, url) for _ in range(4)]
            assert [(status, left) for status, left, _ in answers] == [
                (200, left) for left in (5, 4, 3, 2)
            ]
            settled = sum(tokens for *_, tokens in answers)
            await until(lambda: sum(r for r, _ in saved(tmp_path).get("rpm", ())) == 4, 30)
            await until(lambda: sum(t for _, t in saved(tmp_path)["monthly"]) == settled, 30)
            killed.send_signal(signal.SIGKILL)
            assert await killed.wait() == -signal.SIGKILL
        async with process(tmp_path, engine) as (_, url):
            status, requests, tokens = await ask(client, url)
            assert (status, requests) == (200, 1)
            settled += tokens
            await until(lambda: sum(t for _, t in saved(tmp_path)["monthly"]) == settled, 30)
            assert (await ask(client, url))[:2] == (200, 0)
            refused = await ask(client, url)
            assert refused[:2] == (429, 0), "the minute's limit of 6 over both processes"
