"""OpenTelemetry spans, where the policy names a collector (extra ``otel``); free of cost elsewhere.

A request is one server span, a child of its client's ``traceparent``, with two children: ``queue``
(arrival to dispatch) and the engine's, named as OpenTelemetry's conventions for generative AI have
it (``chat MODEL``, kind client). The engine gets that one's context, so that its own spans hang
below. Attributes are names of the policy, sizes, times and how it ended: no content.

Spans wait in a bounded queue for a thread that sends them; what it cannot take is dropped there.
The collector can change with the policy; requests that run meanwhile are told to neither. Headers
that a collector wants come from ``OTEL_EXPORTER_OTLP_HEADERS``, as everywhere.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from multidict import CIMultiDictProxy

from tidegate.scheduling.contracts import Endpoint, Observability, UsageRecord
from tidegate_sidecar.trace_context import TRACEPARENT, Forwarded, TraceContext, trace_headers

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

log = logging.getLogger("tidegate.sidecar")

_EXPORT_SECONDS = 5.0
_CLOSE_SECONDS = 5.0
_OPERATIONS = {
    Endpoint.CHAT: "chat",
    Endpoint.COMPLETIONS: "text_completion",
    Endpoint.EMBEDDINGS: "embeddings",
}
"""Of the conventions; other endpoints go by their own names."""


class Tracing:
    """Follows the policy: no tracer where it names no collector."""

    def __init__(self) -> None:
        self.tracer: Tracer | None = None
        self._observability = Observability()
        self._closing: list[threading.Thread] = []

    def follow(self, observability: Observability, pool: str) -> None:
        """Trace as a policy says, from now on."""
        if observability == self._observability:
            return
        self._observability = observability
        self._replace(None)
        if observability.otlp_endpoint is None:
            return
        try:
            exporter = _otlp_exporter(observability.otlp_endpoint)
            self._replace(Tracer(exporter, observability.otlp_sample_percent, pool))
        except ModuleNotFoundError as error:
            log.error("nothing is traced: %s is not installed (tidegate[otel])", error.name)

    def begin(self, headers: CIMultiDictProxy[str]) -> TraceContext | None:
        """The trace of a request that begins; None: it has none."""
        if self.tracer is not None:
            return self.tracer.begin(trace_headers(headers))
        if TRACEPARENT in headers and (sent := trace_headers(headers)):
            return Forwarded(sent)
        return None

    async def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        self._replace(None)
        for thread in self._closing:
            await asyncio.to_thread(thread.join, _CLOSE_SECONDS)
        self._closing.clear()

    def _replace(self, tracer: Tracer | None) -> None:
        old, self.tracer = self.tracer, tracer
        if old is not None:
            # It sends what it holds, which may take as long as a collector that does not answer.
            closing = threading.Thread(target=old.shutdown, name="tracer-closing", daemon=True)
            closing.start()
            self._closing = [*(t for t in self._closing if t.is_alive()), closing]


class Tracer:
    """Makes the spans of requests and has them sent."""

    def __init__(self, exporter: SpanExporter, sample_percent: int, pool: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "tidegate-sidecar", "tidegate.pool": pool}),
            sampler=ParentBased(TraceIdRatioBased(sample_percent / 100)),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("tidegate_sidecar")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, parent: Mapping[str, str]) -> RequestSpans:
        """The spans of a request that begins, below ``parent``."""
        return RequestSpans(self._tracer, self._propagator, parent)

    def flush(self) -> None:
        """Blocks until all ended spans were sent."""
        self._provider.force_flush()

    def shutdown(self) -> None:
        """Send what is left; blocks."""
        self._provider.shutdown()


class RequestSpans:
    """The spans of one request."""

    __slots__ = ("_arrived_ns", "_context", "_engines", "_propagator", "_server", "_tracer")

    def __init__(self, tracer: Any, propagator: Any, parent: Mapping[str, str]) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, set_span_in_context

        self._tracer = tracer
        self._propagator = propagator
        self._arrived_ns = time.time_ns()
        self._server: Span = tracer.start_span(
            "request",
            context=propagator.extract(parent, context=Context()),
            kind=SpanKind.SERVER,
            start_time=self._arrived_ns,
        )
        self._context = set_span_in_context(self._server, Context())
        self._engines: list[Span] = []

    def engine_headers(self) -> Mapping[str, str]:
        """Begins a span of the engine's: one for each part, and for each time it is sent anew."""
        from opentelemetry.trace import SpanKind, set_span_in_context

        engine = self._tracer.start_span(
            "engine", context=self._context, kind=SpanKind.CLIENT, start_time=time.time_ns()
        )
        self._engines.append(engine)
        headers: dict[str, str] = {}
        self._propagator.inject(headers, set_span_in_context(engine, self._context))
        return headers

    def ended(self, record: UsageRecord, status: int) -> None:
        """All three end, with what the record says."""
        now_ns = time.time_ns()
        if self._server.is_recording():
            if record.queued_seconds is not None:
                queue = self._tracer.start_span(
                    "queue", context=self._context, start_time=self._arrived_ns
                )
                queue.end(self._arrived_ns + round(record.queued_seconds * 1e9))
            if self._engines:  # what it used counts once, with the last
                last = self._engines[-1]
                last.update_name(f"{_operation(record)} {record.model}")
                last.set_attributes(_engine_attributes(record))
                _failed(last, record, status)
            self._server.update_name(f"{_operation(record)} {record.model}".strip() or "request")
            self._server.set_attributes(_server_attributes(record, status))
            _failed(self._server, record, status)
        for engine in self._engines:
            engine.end(now_ns)
        self._server.end(now_ns)


def _otlp_exporter(endpoint: str) -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_SECONDS)


def _failed(span: Span, record: UsageRecord, status: int) -> None:
    from opentelemetry.trace import StatusCode

    if status >= 500 or record.outcome == "engine_failed":
        span.set_attribute("error.type", record.outcome)
        span.set_status(StatusCode.ERROR)


def _operation(record: UsageRecord) -> str:
    if not record.endpoint:
        return ""
    return _OPERATIONS.get(Endpoint(record.endpoint), record.endpoint)


def _engine_attributes(record: UsageRecord) -> dict[str, Any]:
    """What the conventions for generative AI ask for, what it cost, and the forecast."""
    return _known(
        {
            "gen_ai.operation.name": _operation(record),
            "gen_ai.provider.name": "vllm",
            "gen_ai.request.model": record.model,
            "gen_ai.request.max_tokens": record.max_output_tokens // record.sequences or None,
            "gen_ai.request.choice.count": record.sequences if record.sequences > 1 else None,
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.output_tokens": record.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
            "tidegate.engine_ms": record.engine_ms,
            **_forecast(record),
        }
    )


def _server_attributes(record: UsageRecord, status: int) -> dict[str, Any]:
    return _known(
        {
            "gen_ai.operation.name": _operation(record),
            "gen_ai.request.model": record.model,
            "http.response.status_code": status,
            "tidegate.request.id": record.id,
            "tidegate.tenant": record.tenant,
            "tidegate.tier": record.tier,
            "tidegate.outcome": record.outcome,
            "tidegate.limit": record.limit,
            "tidegate.ttft_seconds": record.ttft_seconds,
            **_forecast(record),
        }
    )


def _forecast(record: UsageRecord) -> dict[str, Any]:
    forecast = {"tidegate.est_finish": record.est_finish_at, "tidegate.vft_skew": record.vft_skew}
    if record.vft_skew is not None:
        forecast["tidegate.vft_skew.flagged"] = record.vft_skew_cause is not None
    return {**forecast, "tidegate.vft_skew.cause": record.vft_skew_cause}


def _known(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value not in (None, "")}
