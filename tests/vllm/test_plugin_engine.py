"""The plug-in in real engines: outputs are stock's, and requests are steered by their tags."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.fake_engine import socket_folder, until
from support.openai_stream import events
from support.plugin_bench import policy
from support.sidecar import ALICE, BOB, SidecarUnderTest, keys_document, sidecar_under_test
from support.vllm_engine import VllmEngine, vllm_engine
from tidegate_sidecar.plugin_files import copy_plugin, write_policy

from testbed.real_vllm import ENVIRONMENT, MODEL
from tidegate.scheduling.contracts import Policy, decode

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
REQUESTS = 64
LONG_TOKENS = 6000
"""At some hundred tokens a second, far longer than a T0 takes for four."""
NEVER_ENDS = {"1": -100}
"""The end of the tiny model's answers is token 1; tenants may not ask to ignore it."""
TIE = 1e-3
"""Where stock's two likeliest tokens are closer than that, the last bits of a sum decide."""


@pytest.fixture(scope="module")
def policy_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy") / "policy.json"
    path.write_text(json.dumps(policy()))
    return path


@pytest.fixture(scope="module")
def told(python: Path, tiny_model: Path, policy_file: Path) -> dict[str, Any]:
    """What real engines said, by run."""
    script = ROOT / "tests" / "support" / "plugin_outputs.py"
    done = subprocess.run(
        [python, script, tiny_model, policy_file, str(REQUESTS)],
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)},
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith('{"stock"')]
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.parametrize("run", ["control", "plug-in", "plug-in with ngram"])
def test_greedy_outputs_are_those_of_stock(told: dict[str, Any], run: str) -> None:
    """Mixed tiers and prefixes; with and without speculation, and stock in another order, which
    shows that what differs elsewhere is no tie."""
    stock, other = told["stock"], told[run]
    assert len(stock["said"]) == REQUESTS
    assert other["said"].keys() == stock["said"].keys()
    for name, tokens in stock["said"].items():
        pairs = enumerate(zip(tokens, other["said"][name], strict=True))
        first = next((at for at, (theirs, own) in pairs if theirs != own), None)
        assert first is None or stock["gap"][name][first] <= TIE, name


@pytest.mark.parametrize("run", ["plug-in", "plug-in with ngram"])
def test_they_were_steered_and_preempted_meanwhile(told: dict[str, Any], run: str) -> None:
    counters = told[run]["counters"]
    assert counters["failures"] == {}
    assert counters["preempted"] > 0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What engine and sidecar share in a pod, with a policy from before the sidecar started."""
    with socket_folder() as folder:
        write_policy(folder / "policy.json", decode(Policy, policy()))
        yield folder


@pytest.fixture(scope="module")
def engine(
    python: Path, tiny_model: Path, shared: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmEngine]:
    """Two seats, as the operator renders it: the code from a copy, policy and statistics shared."""
    code = tmp_path_factory.mktemp("plugin")
    copy_plugin(code)
    paths = {"policy": str(shared / "policy.json"), "statistics": str(shared / "steps.sock")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(code))
        flags = (
            "--max-model-len=8192",
            "--max-num-seqs=2",
            "--scheduler-cls=tidegate.vllm_plugin.TidegateScheduler",
            f"--additional-config={json.dumps({'tidegate': paths})}",
        )
        with vllm_engine(python, tiny_model, *flags) as running:
            yield running


def completion(tier: str, sequence: int, tokens: int) -> dict[str, Any]:
    xargs = {"tidegate_tier": tier, "tidegate_tenant": tier, "tidegate_sequence": sequence}
    return {
        "model": MODEL, "prompt": "Once", "max_tokens": tokens, "ignore_eos": True,
        "vllm_xargs": xargs,
    }  # fmt: skip


async def test_a_t0_takes_a_seat_from_a_t3_that_goes_on_afterwards(engine: VllmEngine) -> None:
    """Through HTTP: tags in ``vllm_xargs``; both seats are T3's, for far longer than T0 takes."""
    async with engine.client() as client:
        answers = [
            await client.post(
                "/v1/completions", json={**completion("t3", number, LONG_TOKENS), "stream": True}
            )
            for number in range(2)
        ]
        streams = [events(answer) for answer in answers]
        for stream in streams:
            await anext(stream)
        async with client.post("/v1/completions", json=completion("t0", 2, 4)) as answer:
            said = await answer.json()
        assert said["usage"]["completion_tokens"] == 4
        figures = await engine.metrics(client)
        assert figures["vllm:num_requests_running"] + figures["vllm:num_requests_waiting"] == 2
        async with asyncio.timeout(60):  # vLLM counts it when the victim's next token is out
            while (await engine.metrics(client))["vllm:num_preemptions_total"] != 1:
                for stream in streams:
                    await anext(stream)
        for answer in answers:
            answer.close()


async def test_untagged_requests_are_served_too(engine: VllmEngine) -> None:
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 4, "ignore_eos": True}
    async with engine.client() as client, client.post("/v1/completions", json=body) as answer:
        assert (await answer.json())["usage"]["completion_tokens"] == 4


def served_policy(generation: int) -> dict[str, Any]:
    return policy(
        generation=generation,
        tenants=[{"name": ALICE, "tier": "t0"}, {"name": BOB, "tier": "t3"}],
        model={"name": MODEL},
        engine={"max_num_seqs": 2},
    )


async def ask(sidecar: SidecarUnderTest, tenant: str, tokens: int, **more: Any) -> Any:
    body = {"model": MODEL, "prompt": "Once", "max_tokens": tokens, **more}
    answer = await sidecar.request("/v1/completions", body, tenant=tenant)
    if not more:
        await answer.read()
    return answer


async def test_behind_the_sidecar_until_the_engine_is_killed(
    engine: VllmEngine, shared: Path, tmp_path: Path
) -> None:
    """All steps are told and charged; a broken policy file and a silent sidecar stop nothing; when
    the engine is killed its stream ends with an error, and until it is back it is 503, soon."""
    async with sidecar_under_test(
        tmp_path,
        f"uds:{engine.uds}",
        policy=served_policy(2),
        keys=keys_document(2),
        engine_plugin=shared,
    ) as sidecar:
        plugin, dispatcher = sidecar.runtime.plugin, sidecar.runtime.dispatcher
        assert plugin is not None
        assert dispatcher.scheduler is not None
        figures = plugin.steps.figures
        seconds: list[float] = []
        in_flight = dispatcher.in_flight
        stepped = in_flight.stepped

        def noted(spent: float, rows: Any, *, learn: bool = True) -> None:
            seconds.append(spent)
            stepped(spent, rows, learn=learn)

        in_flight.stepped = noted  # type: ignore[method-assign]
        stream = await ask(sidecar, BOB, LONG_TOKENS, stream=True, logit_bias=NEVER_ENDS)
        assert stream.status == 200
        await until(lambda: figures.steps >= 100, 150)
        charged = sum(one.engine_ms_total for one in dispatcher.scheduler.tenant_snapshots(0.0))
        assert charged == pytest.approx(1e3 * sum(seconds), rel=0.01)
        assert figures.lost == 0
        stream.close()
        await sidecar.settled()

        (shared / "policy.json").write_text("{ broken")
        plugin.close()  # nobody reads the socket
        assert (await ask(sidecar, ALICE, 400)).status == 200
        plugin.open()
        before = figures.unplanned
        assert (await ask(sidecar, ALICE, 20)).status == 200
        await until(lambda: figures.lost > 0)
        assert figures.unplanned == before  # the last good policy is in force
        assert figures.failures == 0

        stream = await ask(sidecar, BOB, LONG_TOKENS, stream=True, logit_bias=NEVER_ENDS)
        await stream.content.readany()
        os.killpg(engine.process.pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            said = await stream.content.read()
        assert b"error" in said
        await until(lambda: not dispatcher.engine_ready, 30)
        async with aiohttp.ClientSession() as client:  # the broken stream's connection ends, too
            sidecar.client = client
            refused = await ask(sidecar, ALICE, 4)
        assert refused.status == 503
        assert int(refused.headers["Retry-After"]) >= 1
