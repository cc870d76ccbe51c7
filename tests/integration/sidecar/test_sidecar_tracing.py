"""OpenTelemetry spans: one server span a request, the queue's and the engine's below it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from support.fake_engine import StartEngine, until
from support.faulty_engine import USAGE, FaultyEngine
from support.faulty_upstream import answer
from support.sidecar import (
    ALICE,
    SidecarUnderTest,
    keys_document,
    policy_document,
    sidecar_under_test,
    speak,
    write,
)
from tidegate_sidecar.tracing import Tracer

from .conftest import StartSidecar

pytestmark = pytest.mark.integration

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
CANARY = "Say hello."


class Traced:
    """A sidecar whose spans are kept in memory."""

    def __init__(self, sidecar: SidecarUnderTest, percent: int = 100) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracer = Tracer(self.exporter, percent, "team-a/chat")
        sidecar.runtime.reports.tracing.tracer = self.tracer

    async def spans(self) -> Sequence[ReadableSpan]:
        await asyncio.to_thread(self.tracer.flush)
        return self.exporter.get_finished_spans()


async def test_a_request_and_its_parts(sidecar: SidecarUnderTest, engine: FaultyEngine) -> None:
    traced = Traced(sidecar)
    headers = {"traceparent": PARENT, "tracestate": "vendor=1"}
    async with sidecar.chat(stream=True, headers=headers) as response:
        request_id = response.headers["x-request-id"]
        await response.read()
    spans = {span.kind: span for span in await traced.spans()}
    server, queue, client = (
        spans[kind] for kind in (SpanKind.SERVER, SpanKind.INTERNAL, SpanKind.CLIENT)
    )
    assert server.parent is not None
    assert f"{server.parent.trace_id:032x}-{server.parent.span_id:016x}" == PARENT[3:-3]
    for part in (queue, client):
        assert part.parent is not None
        assert part.parent.span_id == server.context.span_id
        assert server.start_time <= part.start_time <= part.end_time <= server.end_time  # type: ignore[operator]
    sent = engine.requests[-1].headers
    assert sent["traceparent"] == f"00-{TRACE}-{client.context.span_id:016x}-01"
    assert sent["tracestate"] == "vendor=1"
    assert (server.name, queue.name, client.name) == (
        "chat test-model",
        "queue",
        "chat test-model",
    )
    assert (
        dict(client.attributes or {}).items()
        >= {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "vllm",
            "gen_ai.request.model": "test-model",
            "gen_ai.usage.input_tokens": USAGE["prompt_tokens"],
            "gen_ai.usage.output_tokens": USAGE["completion_tokens"],
        }.items()
    )
    assert (
        dict(server.attributes or {}).items()
        >= {
            "http.response.status_code": 200,
            "tidegate.request.id": request_id,
            "tidegate.tenant": ALICE,
            "tidegate.tier": "standard",
            "tidegate.outcome": "completed",
        }.items()
    )
    assert CANARY not in "".join(span.to_json() for span in (server, queue, client))


async def test_est_finish_skew_and_cost_stand_on_the_spans(
    start_engine: StartEngine, tmp_path: Path
) -> None:
    fake = await start_engine()
    body = {"max_tokens": 20, "stream": True}
    async with sidecar_under_test(tmp_path, fake) as sidecar:
        pace = sidecar.runtime.dispatcher.scheduler
        assert pace is not None
        for _ in range(20):  # steps must have been measured before one can be relied on
            async with sidecar.chat(**body) as response:
                await response.read()
            if pace.pace.is_measured:
                break
        traced = Traced(sidecar)
        before = time.time()
        async with sidecar.chat(**body) as response:
            await response.read()
        spans = {span.kind: dict(span.attributes or {}) for span in await traced.spans()}
        record = sidecar.runtime.reports.recent.records()[-1]
    server, client = spans[SpanKind.SERVER], spans[SpanKind.CLIENT]
    assert server["tidegate.vft_skew"] == client["tidegate.vft_skew"] == record.vft_skew
    flagged = record.vft_skew_cause is not None
    assert server["tidegate.vft_skew.flagged"] is client["tidegate.vft_skew.flagged"] is flagged
    assert before < server["tidegate.est_finish"] < before + 60  # type: ignore[operator]
    assert client["tidegate.engine_ms"] == record.engine_ms
    assert record.engine_ms is not None
    assert record.engine_ms > 0


async def test_refusals_and_failures(sidecar: SidecarUnderTest, engine: FaultyEngine) -> None:
    traced = Traced(sidecar)
    assert (await speak(sidecar, b"not json"))[0] == 400
    engine.script = answer(500, {"error": {"message": "boom"}})
    assert (await speak(sidecar))[0] == 502
    refused, failed = (s for s in await traced.spans() if s.kind is SpanKind.SERVER)
    assert (refused.attributes or {})["tidegate.outcome"] == "malformed"
    assert refused.status.status_code is StatusCode.UNSET
    assert (failed.attributes or {})["error.type"] == "engine_failed"
    assert failed.status.status_code is StatusCode.ERROR


async def test_a_clients_own_decision_holds(
    sidecar: SidecarUnderTest, engine: FaultyEngine
) -> None:
    traced = Traced(sidecar, percent=0)
    async with sidecar.chat(headers={"traceparent": PARENT[:-2] + "00"}):
        pass
    assert engine.requests[-1].headers["traceparent"].startswith(f"00-{TRACE}-")
    assert engine.requests[-1].headers["traceparent"].endswith("-00")
    async with sidecar.chat():
        pass
    assert await traced.spans() == ()
    async with sidecar.chat(headers={"traceparent": PARENT}):
        pass
    assert len(await traced.spans()) == 3


async def test_untraced_a_clients_context_is_handed_on(
    sidecar: SidecarUnderTest, engine: FaultyEngine
) -> None:
    async with sidecar.chat(headers={"traceparent": PARENT}):
        pass
    assert engine.requests[-1].headers["traceparent"] == PARENT
    async with sidecar.chat(headers={"traceparent": "the prompt"}):
        pass
    assert "traceparent" not in engine.requests[-1].headers


async def test_a_policy_turns_spans_on_and_off(start_sidecar: StartSidecar, tmp_path: Path) -> None:
    received: list[ExportTraceServiceRequest] = []

    async def collect(request: web.Request) -> web.Response:
        received.append(ExportTraceServiceRequest.FromString(await request.read()))
        return web.Response(content_type="application/x-protobuf")

    app = web.Application()
    app.router.add_post("/v1/traces", collect)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/traces"
    try:
        sidecar = await start_sidecar()
        tracing = sidecar.runtime.reports.tracing
        assert tracing.tracer is None
        write(
            tmp_path / "policy.json",
            policy_document(2, version=2, observability={"otlp_endpoint": url}),
        )
        write(tmp_path / "keys.json", keys_document(2))
        await until(lambda: tracing.tracer is not None)
        async with sidecar.chat() as response:
            await response.read()
        write(tmp_path / "policy.json", policy_document(3))
        write(tmp_path / "keys.json", keys_document(3))
        await until(lambda: tracing.tracer is None)
        await until(lambda: received)  # what was held is sent
        spans = [
            span
            for batch in received
            for resource in batch.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        assert len(spans) == 3
        names = {
            a.key: a.value.string_value for a in received[0].resource_spans[0].resource.attributes
        }
        assert names["tidegate.pool"] == "team-a/chat"
    finally:
        await runner.cleanup()


def test_a_sidecar_that_traces_nothing_does_not_even_load_it() -> None:
    code = (
        "import sys, tidegate_sidecar.server; "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
