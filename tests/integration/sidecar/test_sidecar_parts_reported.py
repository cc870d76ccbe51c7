"""A request in parts is one to whoever reads of it: one record, one server span, one salt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from support.fake_engine import StartEngine
from support.sidecar import ALICE, policy_document, sidecar_under_test
from tidegate_sidecar.tracing import Tracer

pytestmark = pytest.mark.integration

DOCUMENTS = [f"document {number}" for number in range(50)]


async def test_a_list_of_documents(
    start_engine: StartEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await start_engine("--runner", "pooling", "--fake-embedding-dimensions", "2")
    policy = policy_document(
        version=2,
        model={"name": "test-model", "task": "Embed"},
        engine={"max_num_batched_tokens": 64, "max_num_seqs": 8},
        tenants=[{"name": ALICE, "tier": "standard", "cache_scope": "tenant/1"}],
    )
    exporter, posted = InMemorySpanExporter(), []
    async with sidecar_under_test(tmp_path, engine, policy=policy, check_other=False) as sidecar:
        runtime = sidecar.runtime
        tracer = runtime.reports.tracing.tracer = Tracer(exporter, 100, "team-a/chat")
        post = runtime.engine.post

        async def record(path: str, headers: Mapping[str, str], body: bytes, *more: Any) -> Any:
            posted.append((headers["traceparent"], json.loads(body)))
            return await post(path, headers, body, *more)

        monkeypatch.setattr(runtime.engine, "post", record)
        async with sidecar.request(
            "/v1/embeddings", {"model": "test-model", "input": DOCUMENTS}
        ) as answer:
            usage = (await answer.json())["usage"]
            request_id = answer.headers["x-request-id"]
        tracer.flush()
        (entry,) = runtime.reports.recent.records()
    assert len(posted) > 1
    assert len({body["cache_salt"] for _, body in posted}) == 1
    assert (entry.id, entry.outcome, entry.sequences) == (request_id, "completed", len(DOCUMENTS))
    assert (entry.prompt_tokens, entry.output_tokens) == (usage["prompt_tokens"], 0)
    assert entry.tokens_reported
    spans = exporter.get_finished_spans()
    (server,) = (span for span in spans if span.kind is SpanKind.SERVER)
    sent = {f"{span.context.span_id:016x}" for span in spans if span.kind is SpanKind.CLIENT}
    assert sent == {parent.split("-")[2] for parent, _ in posted}
    assert all(span.context.trace_id == server.context.trace_id for span in spans)
