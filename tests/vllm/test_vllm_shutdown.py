"""How the real vLLM ends on SIGTERM: what the drain of a pod builds on."""

import asyncio
import contextlib
import os
import socket
import subprocess
from pathlib import Path

import aiohttp
import pytest
from support.openai_stream import events
from support.vllm_engine import vllm_engine

from testbed.real_vllm import ENVIRONMENT, MODEL

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]  # an engine's start counts

TOKENS = 300
"""About a second of generation on an idle core; far more than is buffered anywhere."""

LONG_TOKENS = 1500
SILENT_SECONDS = 20.0


def request(tokens: int) -> dict[str, object]:
    return {
        "model": MODEL, "prompt": "Once", "max_tokens": tokens, "ignore_eos": True, "stream": True
    }  # fmt: skip


async def test_sigterm_with_a_shutdown_timeout_finishes_what_runs(
    python: Path, tiny_model: Path
) -> None:
    flags = ("--max-num-seqs=4", "--shutdown-timeout=120")
    with vllm_engine(python, tiny_model, *flags) as engine:
        async with engine.client() as client, client.post(
            "/v1/completions", json=request(TOKENS)
        ) as answer:  # fmt: skip
            stream = events(answer)
            first = await anext(stream)
            engine.process.terminate()
            rest = [event async for event in stream]
            assert [first, *rest][-1]["choices"][0]["finish_reason"] == "length"
        assert await engine.wait() == 0


async def test_sigterm_without_one_aborts_what_runs_and_leaves_the_socket(
    python: Path, tiny_model: Path
) -> None:
    """Its stream ends in an error event, or falls silent until the client leaves."""
    reasons = []
    with vllm_engine(python, tiny_model, "--max-num-seqs=4") as engine:
        async with engine.client() as client:
            with contextlib.suppress(aiohttp.ClientError, ValueError, TimeoutError):
                async with (
                    asyncio.timeout(SILENT_SECONDS),
                    client.post("/v1/completions", json=request(LONG_TOKENS)) as answer,
                ):
                    async for event in events(answer):
                        if not reasons:
                            engine.process.terminate()
                        reasons += [choice["finish_reason"] for choice in event.get("choices", ())]
        await engine.wait()
        assert await asyncio.to_thread(Path(engine.uds).is_socket)
    assert 0 < len(reasons) < LONG_TOKENS
    assert "length" not in reasons


async def test_a_socket_left_behind_stops_the_next_start(
    python: Path, tiny_model: Path, tmp_path: Path
) -> None:
    """So whoever starts an engine anew in the same volume removes the socket first."""
    path = str(tmp_path / "s")
    if len(path) > 100:
        pytest.skip("the temporary folder's path is too long for a socket")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    ended = await asyncio.to_thread(
        subprocess.run,
        [python.with_name("vllm"), "serve", tiny_model, "--uds", path, "--enforce-eager"],
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT},
        timeout=300,
    )
    assert ended.returncode == 1
    assert "Address already in use" in ended.stderr + ended.stdout
