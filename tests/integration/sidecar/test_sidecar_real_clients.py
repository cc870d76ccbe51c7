"""Clients that are not ours: the openai SDK with its own retries, and curl."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import openai
import pytest
from support.fake_engine import until
from support.faulty_engine import DONE, MODEL, FaultyEngine
from support.faulty_upstream import stall
from support.sidecar import ALICE, KEYS, SidecarUnderTest, chat_body, policy_document

from .conftest import StartSidecar

pytestmark = pytest.mark.integration

MESSAGES = [{"role": "user", "content": "Say hello."}]
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def sdk(sidecar: SidecarUnderTest, tenant: str, retries: int) -> openai.AsyncOpenAI:
    url = sidecar.url + "/v1"
    return openai.AsyncOpenAI(api_key=KEYS[tenant], base_url=url, max_retries=retries)


async def test_o7_the_sdk_retries_our_429_by_itself_and_is_served(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    """Refused for a full queue, it waits for as long as it was told, and what it then asks counts
    once."""
    tier = {"max_in_flight": 1, "queue": {"max_requests": 1, "max_wait_seconds": 60.0}}
    sidecar = await start_sidecar(policy=policy_document(tier=tier))
    engine.script = stall
    first = asyncio.create_task(_chat(sidecar))
    await until(lambda: engine.busy == 1)
    second = asyncio.create_task(_chat(sidecar))
    await until(lambda: sidecar.runtime.dispatcher.in_hand == 2)
    async with sdk(sidecar, ALICE, retries=3) as client:
        asked = asyncio.create_task(
            client.chat.completions.create(model=MODEL, messages=MESSAGES)  # type: ignore[arg-type]
        )
        await until(lambda: sidecar.outcomes(ALICE).get("queue_full") == 1)
        engine.script = None
        first.cancel()
        await second
        answer = await asyncio.wait_for(asked, 150)
    assert answer.choices[0].message.content == "Hello!"
    await asyncio.gather(first, return_exceptions=True)
    outcomes = sidecar.outcomes(ALICE)
    assert outcomes.pop("client_closed") == 1
    assert outcomes.pop("completed") == 2
    assert set(outcomes) == {"queue_full"}


async def _chat(sidecar: SidecarUnderTest) -> None:
    async with sidecar.chat() as answer:
        await answer.read()


async def curl(sidecar: SidecarUnderTest, *arguments: str) -> bytes:
    """What it printed; AssertionError where it failed."""
    process = await asyncio.create_subprocess_exec(
        "curl", "--silent", "--show-error", "--max-time", "60",
        "--header", f"Authorization: Bearer {KEYS[ALICE]}",
        "--header", "Content-Type: application/json", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, error = await process.communicate()
    assert process.returncode == 0, error
    return out


@needs_curl
@pytest.mark.parametrize("flags", [(), ("--http1.0",), ("--compressed",)], ids=" ".join)
async def test_curl_reads_streams_and_whole_answers(
    sidecar: SidecarUnderTest, flags: tuple[str, ...]
) -> None:
    url = sidecar.url + "/v1/chat/completions"
    whole = await curl(sidecar, *flags, "--data", json.dumps(chat_body()), url)
    assert json.loads(whole)["choices"][0]["message"]["content"] == "Hello!"
    stream = await curl(
        sidecar, *flags, "--no-buffer", "--data", json.dumps(chat_body(stream=True)), url
    )
    assert stream.endswith(DONE)
    assert sidecar.outcomes(ALICE) == {"completed": 2}


@needs_curl
async def test_o11_curl_asks_before_it_sends_a_large_body(
    sidecar: SidecarUnderTest, engine: FaultyEngine, tmp_path: Path
) -> None:
    """``Expect: 100-continue``, and a body in chunks of unknown length."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 3_000_000}}
    body = tmp_path / "body.json"
    body.write_text(json.dumps(chat_body(messages=[{"role": "user", "content": [image]}])))
    url = sidecar.url + "/v1/chat/completions"
    for extra in ((), ("--header", "Transfer-Encoding: chunked")):
        answer = await curl(sidecar, "--header", "Expect: 100-continue", *extra, "--data-binary",
                            f"@{body}", url)  # fmt: skip
        assert json.loads(answer)["choices"], answer[:300]
    assert [len(request.body) > 3_000_000 for request in engine.requests] == [True, True]
