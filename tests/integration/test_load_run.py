"""The load generator against real servers on loopback."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import types
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from support.fake_engine import MODEL, StartEngine, engine_process, until
from support.faulty_upstream import FaultyUpstream, stall

from tidegate.load import LoadError, LoadRun, SampleState, build_report, http_client
from tidegate.load.http_client import connection_limit
from tidegate.scheduling.contracts import (
    SCENARIO_VERSION,
    Arrival,
    ArrivalProcess,
    Endpoint,
    LengthDistribution,
    LengthShape,
    LoadReport,
    Scenario,
    TenantLoad,
)
from tidegate.workload import Workload

pytestmark = pytest.mark.integration

TOKENS_8 = LengthDistribution(LengthShape.CONSTANT, value=8)
BURST = Arrival(ArrivalProcess.BURST)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def tenant(name: str = "a", arrival: Arrival = BURST, **fields: Any) -> TenantLoad:
    given: dict[str, Any] = {"prompt_tokens": TOKENS_8, "output_tokens": TOKENS_8} | fields
    if arrival.process is ArrivalProcess.BURST:
        given.setdefault("requests", 1)
    return TenantLoad(name=name, arrival=arrival, **given)


def scenario(*tenants: TenantLoad, duration: float = 30.0, drain: float = 30.0) -> Scenario:
    return Scenario(
        version=SCENARIO_VERSION,
        name="test",
        model=MODEL,
        duration_seconds=duration,
        drain_seconds=drain,
        tenants=tenants,
    )


def report_of(run: LoadRun) -> LoadReport:
    return build_report(
        run.scenario,
        run.samples,
        started_at=run.started_at,
        complete=run.complete,
        loop_lag_p99_seconds=run.loop_lag.p99_seconds,
    )


async def load(url: str, *tenants: TenantLoad, **times: float) -> LoadReport:
    """The report of a run, after which no task of it is left."""
    run = LoadRun(Workload(scenario(*tenants, **times)), url, {})
    await run.run()
    assert run.in_flight == 0
    coroutines = [task.get_coro() for task in asyncio.all_tasks()]
    files = [c.cr_code.co_filename for c in coroutines if isinstance(c, types.CoroutineType)]
    assert not [file for file in files if "tidegate/load" in file]
    return report_of(run)


@asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[str]:
    """A server that answers every POST with ``handler``."""
    app = web.Application()
    app.router.add_post("/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


def error_body(code: str) -> dict[str, object]:
    return {"error": {"message": "no", "type": "t", "code": code, "param": None}}


async def events(request: web.Request, *data: str, end: bool = True) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for item in data:
        await response.write(f"data: {item}\n\n".encode())
    if end:
        await response.write(b"data: [DONE]\n\n")
    return response


async def test_every_endpoint_of_an_engine_is_answered_and_tokens_are_exact(
    start_engine: StartEngine,
) -> None:
    engine = await start_engine("--fake-ignore-eos")
    lengths = LengthDistribution(LengthShape.UNIFORM, low=1, high=200)
    poisson = Arrival(ArrivalProcess.POISSON, rate_per_second=40.0)
    made = await load(
        engine.url,
        tenant("chat", poisson, requests=10, prompt_tokens=lengths),
        tenant("text", endpoint=Endpoint.COMPLETIONS, requests=10, stream=False),
        tenant(
            "ids",
            Arrival(ArrivalProcess.CLOSED, concurrency=3),
            endpoint=Endpoint.COMPLETIONS,
            prompt_as_token_ids=True,
            requests=10,
            ignore_eos=True,
        ),
    )
    chat, text, ids = (group.figures for group in made.tenants)
    assert (chat.ok, text.ok, ids.ok) == (10, 10, 10)
    assert (text.prompt_tokens, text.output_tokens) == (80, 80)
    assert (ids.prompt_tokens, ids.output_tokens) == (80, 80)
    assert chat.output_tokens == 80
    assert chat.ttft_seconds is not None
    assert text.ttft_seconds is None
    assert text.e2e_seconds is not None
    assert made.complete


async def test_embeddings_are_measured_without_output(start_engine: StartEngine) -> None:
    engine = await start_engine("--runner", "pooling")
    made = await load(
        engine.url, tenant(endpoint=Endpoint.EMBEDDINGS, output_tokens=None, requests=4)
    )
    figures = made.total
    assert (figures.ok, figures.prompt_tokens, figures.output_tokens) == (4, 32, 0)


async def test_2000_requests_are_open_at_once() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2_400:
        pytest.skip("needs 2,400 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    open_now = most = 0
    everyone = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        if open_now == 2_000:
            everyone.set()
        await asyncio.wait_for(everyone.wait(), 200)
        open_now -= 1
        return web.json_response({"usage": {"prompt_tokens": 8, "completion_tokens": 1}})

    try:
        async with server(handler) as url:
            made = await load(url, tenant(requests=2_000, stream=False), duration=240)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert most == 2_000
    assert made.total.ok == 2_000


def test_the_limit_of_open_files_is_raised_and_respected() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        limit = connection_limit()
        assert limit + 256 <= resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert limit > 512 or hard <= 1024
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _dropped(request: web.Request) -> web.StreamResponse:
    headers = {"x-tidegate-dropped-reason": "rejected-queue-full", "Retry-After": "7"}
    return web.json_response(error_body("queue_full"), status=429, headers=headers)


async def _by_code(request: web.Request) -> web.StreamResponse:
    return web.json_response(error_body("prompt_too_long"), status=413)


async def _plain_503(request: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>", status=503)


async def _crash(request: web.Request) -> web.StreamResponse:
    return web.json_response(error_body("engine_failed"), status=502)


async def _moved(request: web.Request) -> web.StreamResponse:
    return web.Response(status=307, headers={"Location": "/elsewhere"})


async def _error_event(request: web.Request) -> web.StreamResponse:
    return await events(request, '{"choices":[{"text":"x"}]}', '{"error":{"code":"engine_failed"}}')


async def _cut(request: web.Request) -> web.StreamResponse:
    return await events(request, '{"choices":[{"text":"x"}]}', end=False)


async def _reset(request: web.Request) -> web.StreamResponse:
    response = await events(request, '{"choices":[{"text":"x"}]}', end=False)
    assert request.transport is not None
    request.transport.abort()
    return response


async def _no_stream(request: web.Request) -> web.StreamResponse:
    return web.json_response({})


@pytest.mark.parametrize(
    ("handler", "state", "reason"),
    [
        (_dropped, SampleState.REFUSED, "rejected-queue-full"),
        (_by_code, SampleState.REFUSED, "prompt_too_long"),
        (_plain_503, SampleState.REFUSED, "http_503"),
        (_crash, SampleState.FAILED, "engine_failed"),
        (_moved, SampleState.FAILED, "http_307"),
        (_error_event, SampleState.FAILED, "engine_failed"),
        (_cut, SampleState.FAILED, "stream_cut_short"),
        (_reset, SampleState.FAILED, "disconnected"),
        (_no_stream, SampleState.FAILED, "not_a_stream"),
    ],
)
async def test_every_bad_end_is_counted_once_by_its_reason(
    handler: Handler, state: SampleState, reason: str
) -> None:
    async with server(handler) as url:
        made = await load(url, tenant(requests=3))
    figures = made.total
    assert (figures.sent, figures.ok) == (3, 0)
    expected = {reason: 3}
    assert figures.refused == (expected if state is SampleState.REFUSED else {})
    assert figures.failed == (expected if state is SampleState.FAILED else {})


async def test_an_answer_that_is_no_json_is_a_failure() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>")

    async with server(handler) as url:
        made = await load(url, tenant(stream=False))
    assert made.total.failed == {"malformed_answer": 1}


async def test_a_refused_caller_of_a_closed_loop_waits_as_it_was_told() -> None:
    async with server(_dropped) as url:
        closed = Arrival(ArrivalProcess.CLOSED, concurrency=2)
        made = await load(url, tenant(arrival=closed), duration=1.0)
    assert made.total.refused == {"rejected-queue-full": 2}


async def test_an_open_loop_sends_on_time_whatever_the_answers_do() -> None:
    release = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return await events(request, '{"choices":[{"text":"x"}]}')

    constant = Arrival(ArrivalProcess.CONSTANT, rate_per_second=50.0)
    async with server(handler) as url:
        run = LoadRun(Workload(scenario(tenant(arrival=constant), duration=1.0)), url, {})
        task = asyncio.create_task(run.run())
        await until(lambda: run.in_flight == 50, seconds=20)
        await asyncio.sleep(0.2)
        release.set()
        await task
    made = report_of(run)
    assert made.total.ok == 50
    assert made.total.ttft_seconds is not None
    # the first waited at least the second in which the others were sent, the last only the rest
    assert made.total.longest_wait_seconds > 1.0
    assert made.total.ttft_seconds.p50 > 0.5


async def test_headers_and_body_are_openais_and_carry_the_tenants_own_key() -> None:
    seen: list[tuple[str, Any, Any]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append((request.path, dict(request.headers), await request.json()))
        return await events(request)

    async with server(handler) as url:
        workload = Workload(scenario(tenant("a", priority=-3, deadline_ms=250), tenant("b")))
        await LoadRun(workload, url + "/v1/", {"a": "key-a"}, model="other").run()
    (path, headers, body), (_, bare, _) = sorted(
        seen, key=lambda item: "Authorization" not in item[1]
    )
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer key-a"
    assert headers["x-tidegate-priority"] == "-3"
    assert headers["x-tidegate-deadline-ms"] == "250"
    assert body["model"] == "other"
    assert body["max_tokens"] == 8
    assert body["stream_options"] == {"include_usage": True}
    assert not {"Authorization", "x-tidegate-priority", "x-tidegate-deadline-ms"} & set(bare)


async def test_stop_gives_up_what_is_in_flight_and_counts_it() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(600)
        return web.Response()

    async with server(handler) as url:
        closed = Arrival(ArrivalProcess.CLOSED, concurrency=5)
        run = LoadRun(Workload(scenario(tenant(arrival=closed))), url, {})
        task = asyncio.create_task(run.run())
        await until(lambda: run.in_flight == 5)
        run.stop()
        await asyncio.wait_for(task, 10)
    made = report_of(run)
    assert not made.complete
    assert (made.total.sent, made.total.unfinished) == (5, 5)
    assert made.total.longest_wait_seconds > 0


async def test_stop_ends_the_wait_for_an_endpoint_that_does_not_answer() -> None:
    async with FaultyUpstream(stall) as upstream:
        run = LoadRun(Workload(scenario(tenant(requests=1))), upstream.url, {})
        running = asyncio.create_task(run.run())
        await until(lambda: bool(upstream.requests))
        async with asyncio.timeout(20):
            run.stop()
            await running
    assert not run.complete
    assert run.samples == []


async def test_an_endpoint_that_does_not_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_client, "_CONNECT_TIMEOUT_SECONDS", 0.1)
    async with FaultyUpstream(stall) as upstream, asyncio.timeout(20):
        run = LoadRun(Workload(scenario(tenant(requests=1))), upstream.url, {})
        with pytest.raises(LoadError, match="cannot reach"):
            await run.run()


async def test_what_is_unanswered_after_the_drain_is_unfinished() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(600)
        return web.Response()

    async with server(handler) as url:
        made = await load(url, tenant(requests=2), duration=0.1, drain=0.2)
    assert made.complete
    assert made.total.unfinished == 2


async def test_an_engine_that_dies_fails_what_it_had_and_the_run_ends() -> None:
    async with engine_process("--fake-time-scale", "50") as engine:
        lengths = LengthDistribution(LengthShape.CONSTANT, value=200)
        load_run = LoadRun(
            Workload(scenario(tenant(requests=20, output_tokens=lengths, ignore_eos=True))),
            engine.url,
            {},
        )
        task = asyncio.create_task(load_run.run())
        await until(lambda: any(s.first_token is not None for s in load_run.samples), seconds=30)
        engine.process.kill()
        await asyncio.wait_for(task, 30)
    figures = report_of(load_run).total
    assert sum(figures.failed.values()) == 20


async def test_an_endpoint_that_is_away_is_an_error_before_anything_is_sent() -> None:
    run = LoadRun(Workload(scenario(tenant())), "http://127.0.0.1:1", {})
    with pytest.raises(LoadError, match=re.escape("cannot reach http://127.0.0.1:1: connection_r")):
        await run.run()
    assert run.samples == []


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:80", "ftp://x", "http://", "http://x:port", "http://x?q"]
)
async def test_an_endpoint_that_is_no_url_is_an_error(url: str) -> None:
    with pytest.raises(LoadError, match="expected http://HOST:PORT"):
        await LoadRun(Workload(scenario(tenant())), url, {}).run()


async def test_no_sample_holds_prompt_key_or_answer() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await events(request, '{"choices":[{"text":"the-answer"}]}')

    async with server(handler) as url:
        run = LoadRun(Workload(scenario(tenant())), url, {"a": "the-key"})
        await run.run()
    shown = repr(run.samples) + os.linesep + repr(report_of(run))
    assert "the-key" not in shown
    assert "the-answer" not in shown
