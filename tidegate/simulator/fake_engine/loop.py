"""Runs the engine model in real time: one task for all requests.

The loop steps the model, sleeps until the step's end and then hands out its tokens. Steps follow
an ideal clock: the next one starts where the last one ended, also when the process got the CPU
late, so that a short delay makes up for itself instead of slowing the engine down. A delay of
more than ``MAX_LAG_SECONDS`` is dropped (and shows in ``tidegate_fake_engine_lag_seconds``).

Arrivals and aborts act on the model at once; it then is at the end of the step in flight, so both
take effect with the next step, as in vLLM. Each submitted sequence ends exactly once: finished, or
aborted, whichever comes first.
"""

from __future__ import annotations

import asyncio
import time

from tidegate.simulator.engine_model import Engine, EngineRequest, RequestState, StepResult
from tidegate.simulator.fake_engine.metrics import EngineMetrics
from tidegate.simulator.fake_engine.request_log import RequestLog
from tidegate.simulator.fake_engine.sequence import Receiver, Sequence

MAX_LAG_SECONDS = 0.25


class EngineLoop:
    """Owns the engine; ``run`` is its only task."""

    def __init__(self, engine: Engine, metrics: EngineMetrics, log: RequestLog) -> None:
        self.engine = engine
        self._metrics = metrics
        self._log = log
        self._live: dict[EngineRequest, Sequence] = {}
        self._wake = asyncio.Event()
        self._scheduled = 0
        self._last_step_end: float | None = None

    @property
    def live_sequences(self) -> int:
        """Sequences submitted and not ended."""
        return len(self._live)

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence. ValueError: it can never fit."""
        sequence.request.arrived_at = time.monotonic()
        self.engine.add(sequence.request)
        self._live[sequence.request] = sequence
        self._log.arrived(sequence)
        self._wake.set()

    def abort(self, sequence: Sequence, reason: str) -> None:
        """End a sequence and free its blocks; nothing if it has ended."""
        if self._live.pop(sequence.request, None) is None:
            return
        now = time.monotonic()
        self.engine.abort(sequence.request, now)
        self._metrics.observe_end(sequence.request, "abort", now)
        self._log.ended(sequence, now, self.engine.totals.steps, reason)

    def stop(self) -> None:
        """End every sequence and tell its receiver."""
        for sequence in list(self._live.values()):
            self.abort(sequence, "shutdown")
            sequence.receiver.on_engine_stopped()

    async def run(self) -> None:
        """Step for ever; cancel to stop."""
        starts_at = time.monotonic()
        idle_since = starts_at
        while True:
            if not self.engine.has_work:
                self._log.flush()
                self._wake.clear()
                await self._wake.wait()
                starts_at = time.monotonic()
            step = self.engine.step(starts_at)
            self._log_start(step, starts_at - idle_since)
            delay = step.ends_at - time.monotonic()
            await asyncio.sleep(max(delay, 0.0))
            self._deliver(step)
            idle_since = starts_at = self._next_start(step)

    def _next_start(self, step: StepResult) -> float:
        lag = max(time.monotonic() - step.ends_at, 0.0)
        self._metrics.lag_seconds = lag
        return step.ends_at if lag <= MAX_LAG_SECONDS else time.monotonic()

    def _log_start(self, step: StepResult, idle_seconds: float) -> None:
        self._log.step(step, idle_seconds)
        for request in step.first_scheduled:
            if self._log.enabled:
                self._log.scheduled(self._live[request], step, self._scheduled)
            self._scheduled += 1

    def _deliver(self, step: StepResult) -> None:
        live, logging = self._live, self._log.enabled
        receivers: dict[Receiver, None] = {}
        firsts = 0
        for request in step.sampled:
            sequence = live.get(request)
            if sequence is None:
                continue
            if request.output_tokens == 1:
                firsts += 1
                self._metrics.ttft.observe(step.ends_at - request.arrived_at)
                if logging:
                    self._log.first_token(sequence, step)
            sequence.receiver.on_token(sequence)
            receivers[sequence.receiver] = None
        for request in step.finished:
            sequence = live.pop(request, None)
            if sequence is not None:
                self._finish(sequence, step)
                receivers[sequence.receiver] = None
        for receiver in receivers:
            receiver.flush()
        self._metrics.step_tokens.observe(step.tokens)
        if self._last_step_end is not None and len(step.sampled) > firsts:
            gap = step.ends_at - self._last_step_end
            self._metrics.token_gap.observe(gap, len(step.sampled) - firsts)
        self._last_step_end = step.ends_at
        self._log.flush()

    def _finish(self, sequence: Sequence, step: StepResult) -> None:
        assert sequence.request.state is RequestState.FINISHED
        self._metrics.observe_end(sequence.request, sequence.finish_reason, step.ends_at)
        self._log.ended(sequence, step.ends_at, step.number, sequence.finish_reason)
        sequence.receiver.on_finished(sequence)
