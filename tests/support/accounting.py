"""The accounting oracle: what holds of a sidecar whenever nothing is under way.

Nothing in flight, queued or reserved; no exchange with the engine open, and the engine busy for
nobody; one record for each request that was counted; in the windows of limits what the records say
was billed; no metric below zero.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable

from support.fake_engine import until
from support.faulty_engine import FaultyEngine
from tidegate_sidecar.exposition import exposition
from tidegate_sidecar.recent_requests import MAX_ENDED
from tidegate_sidecar.runtime import Runtime

from tidegate.scheduling.contracts import (
    Endpoint,
    LimitWindow,
    RateLimit,
    SchedulingMode,
    UsageRecord,
)
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.rate_limit import WindowKey
from tidegate.simulator.fake_engine import FakeEngine

Engine = FaultyEngine | FakeEngine | str
"""That a test sees into, or the address of another."""

_BELOW_ZERO = re.compile(r"^(?!tidegate_vft_skew_ratio_sum)\w+(?:\{.*\})? -.*$", re.MULTILINE)
"""Of an exposition; requests may well have ended sooner than was estimated."""
_SHORTEST_WINDOW_SECONDS = 50.0
"""Later, what was counted first may have left a window."""

Counts = tuple[int, int]
"""Requests and tokens."""


class Accounting:
    """Of one sidecar, since its start."""

    def __init__(self, runtime: Runtime, engine: Engine) -> None:
        self._runtime = runtime
        self._engine = engine
        self._began = runtime.dispatcher.loop.time()
        self._restored = self._counted()
        self._limits = self._limits_in_force()

    async def settled(self) -> None:
        """AssertionError unless all of it holds, after a moment at most."""
        dispatcher = self._runtime.dispatcher
        with contextlib.suppress(TimeoutError):
            await until(lambda: not (dispatcher.in_hand or self._open_exchanges()), 5.0)
        self._nothing_is_under_way()
        records = self._runtime.reports.recent.records()
        if len(records) < MAX_ENDED:  # else older ones are forgotten
            self._each_is_recorded_once(records)
            self._limits_counted(records)
        below_zero = _BELOW_ZERO.findall(exposition(self._runtime).decode())
        assert not below_zero

    def _open_exchanges(self) -> int:
        """Those of requests; the sidecar's own watch of the engine has one at most."""
        engine = self._engine
        answering = 0
        if isinstance(engine, FaultyEngine):
            answering = engine.busy
        elif isinstance(engine, FakeEngine):
            answering = engine.open_answers + engine.live_sequences
        return max(self._runtime.engine.open_exchanges - 1, 0) + answering

    def _nothing_is_under_way(self) -> None:
        dispatcher = self._runtime.dispatcher
        scheduler, gate = dispatcher.scheduler, dispatcher.in_flight.gate
        assert scheduler is not None
        assert gate is not None
        assert dispatcher.in_hand == 0
        assert scheduler.queued() == 0
        assert scheduler.in_flight() == 0
        assert gate.not_started == 0
        assert not scheduler._admission.holds_any
        for tenant in scheduler.tenant_snapshots(dispatcher.loop.time()):
            assert (tenant.queued, tenant.queued_bytes, tenant.running) == (0, 0, 0)
        assert not self._open_exchanges()
        assert not self._runtime.reports.open

    def _each_is_recorded_once(self, records: Iterable[UsageRecord]) -> None:
        """One record for each request that was counted, with the tokens that were billed."""
        tally, dispatcher = self._runtime.tally, self._runtime.dispatcher
        counted: Counter[tuple[str, str]] = Counter()
        billed: Counter[str] = Counter()
        for record in records:
            name = record.tenant if record.tier else ""
            counted[name, record.outcome] += 1
            billed[name] += record.prompt_tokens + record.output_tokens
        rows = {"": tally.unknown, **{name: row.outcomes for name, row in tally.tenants.items()}}
        for name, outcomes in rows.items():
            for outcome in Outcome:
                assert counted[name, outcome.value] == outcomes.get(outcome, 0), (name, outcome)
        scheduler = dispatcher.scheduler
        assert scheduler is not None
        for tenant in scheduler.tenant_snapshots(dispatcher.loop.time()):
            assert billed[tenant.name] <= tenant.service_tokens_total

    def _limits_counted(self, records: list[UsageRecord]) -> None:
        """Each window holds what its tenant was billed, and what it held at the start."""
        in_force, dispatcher = self._runtime.in_force, self._runtime.dispatcher
        assert in_force is not None
        policy = in_force.policy
        if policy.scheduling_mode is SchedulingMode.SHADOW:
            return  # who would have been refused counts in no window, and is served
        if policy.shared_state is not None or self._runtime.pods > 1:
            return  # what others were billed counts too
        old = dispatcher.loop.time() - self._began > _SHORTEST_WINDOW_SECONDS
        counted, in_force_now = self._counted(), self._limits_in_force()
        for key, limit in self._limits.items():
            if in_force_now.get(key) != limit or (old and limit.per is LimitWindow.MINUTE):
                continue
            requests, tokens = self._restored.get(key, (0, 0))
            for record in records:
                billed = record.prompt_tokens + record.output_tokens
                if billed and record.tenant == key[0] and _counts(limit, record):
                    requests, tokens = requests + 1, tokens + billed
            assert counted.get(key, (0, 0)) == (requests, tokens), key

    def _counted(self) -> dict[WindowKey, Counts]:
        """What stands in the windows of all limits."""
        scheduler = self._runtime.dispatcher.scheduler
        windows = {} if scheduler is None else scheduler.limits.limiter.windows
        return {
            key: (
                sum(part.requests for part in window.slices.values()),
                sum(part.tokens for part in window.slices.values()),
            )
            for key, window in windows.items()
        }

    def _limits_in_force(self) -> dict[WindowKey, RateLimit]:
        if (in_force := self._runtime.in_force) is None:
            return {}
        return {
            (tenant.name, limit.name, limit.per): limit
            for tenant in in_force.policy.tenants
            for limit in in_force.tier_of(tenant).rate_limits_of(tenant)
        }


def _counts(limit: RateLimit, record: UsageRecord) -> bool:
    return limit.counts(Endpoint(record.endpoint), record.model)
