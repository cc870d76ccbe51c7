"""What is told of requests: usage records, spans, who waited for whom, samples of slow traffic.

Each request of the tenants' port begins here and ends here, exactly once, whatever befalls it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import replace

from multidict import CIMultiDictProxy

from tidegate.scheduling.contracts import UsageRecord
from tidegate_sidecar.in_force import InForce
from tidegate_sidecar.latency_baseline import SLICE_SECONDS, LatencyBaseline
from tidegate_sidecar.passage import Passage
from tidegate_sidecar.recent_requests import Ended, RecentRequests
from tidegate_sidecar.request_ids import request_ids
from tidegate_sidecar.settings import Settings
from tidegate_sidecar.tracing import Tracing
from tidegate_sidecar.traffic_profile import TrafficProfile
from tidegate_sidecar.usage_records import UsageRecords

log = logging.getLogger("tidegate.sidecar")


RUNNING = "running"
"""Stands for the outcome in a sample's record of a request that had none yet."""


class Reports:
    """Of one sidecar. OSError where its usage records cannot be written."""

    def __init__(
        self, settings: Settings, recent: RecentRequests, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._loop = loop
        self._in_force: InForce | None = None
        self._engine_group = settings.engine_group
        self._ids = request_ids()
        target = settings.usage_records
        self.usage = None if target is None else UsageRecords(target)
        self.tracing = Tracing()
        self.recent = recent
        self.open: set[Passage] = set()
        """Requests that have not ended."""
        self.baseline = LatencyBaseline(loop.time())
        self.profile = TrafficProfile(settings.profile_tenants, settings.profile_folder)

    def apply_policy(self, in_force: InForce) -> None:
        """Who there is, and where traces go."""
        self._in_force, policy = in_force, in_force.policy
        self.tracing.follow(policy.observability, policy.pool)
        self.recent.keep_tenants({tenant.name for tenant in policy.tenants})
        self.baseline.keep_tiers([tier.name for tier in policy.tiers])

    def begin(self, headers: CIMultiDictProxy[str]) -> Passage:
        """A request has come."""
        trace = self.tracing.begin(headers)
        passage = Passage(
            next(self._ids),
            self._loop.time(),
            time.time(),
            trace=trace,
            engine_group=self._engine_group,
        )
        self.open.add(passage)
        return passage

    def ended(self, passage: Passage) -> None:
        """It has ended."""
        self.open.remove(passage)
        outcome = passage.ended_as
        if outcome is None:
            return  # it asked for nothing
        now = self._loop.time()
        record = self._record(passage, outcome, now)
        self.recent.ended(
            Ended(record, passage.arrival, passage.waited_until(now), passage.refusal),
            bool(record.tier),
        )
        if self.usage is not None:
            self.usage.put(record)
        self.profile.ended(record)
        if passage.trace is not None:
            passage.trace.ended(record, passage.status)

    def find_open(self, request_id: str) -> Passage | None:
        """The request, where it has not ended; O(n)."""
        return next((passage for passage in self.open if passage.id == request_id), None)

    async def follow(self) -> None:
        """Watch for slow tiers, and sample their traffic."""
        while True:
            await asyncio.sleep(SLICE_SECONDS)
            try:
                await self.look(self._loop.time())
            except Exception:
                log.exception("looking at latencies failed")

    async def look(self, now: float) -> None:
        """Once; every :data:`SLICE_SECONDS`."""
        for tier in self.baseline.tick(now):
            self.profile.begin(tier, self.baseline.ratio(tier), now, time.time())
        if self.profile.due(now):
            sample = self.profile.finish(self._running())
            await asyncio.to_thread(self.profile.store, sample)
            log.warning(
                "a sample of the traffic was taken",
                extra={"event": "profile_sample_taken", "sample": sample.name, "rows": sample.rows},
            )

    async def close(self) -> None:
        """Write and send what is left, for some seconds at most."""
        if self.usage is not None:
            await asyncio.to_thread(self.usage.close)
        await self.tracing.close()

    def _running(self) -> Iterator[UsageRecord]:
        """What is in the engine, with the output seen so far."""
        now = self._loop.time()
        for passage in self.open:
            record = self._record(passage, RUNNING, now)
            if record.queued_seconds is not None:
                yield replace(
                    record,
                    prompt_tokens=record.estimated_prompt_tokens,
                    output_tokens=sum(ticket.output_tokens for ticket in passage.tickets),
                )

    def _record(self, passage: Passage, outcome: str, now: float) -> UsageRecord:
        """Its tier is empty where its tenant is none of the policy."""
        pool = tier = ""
        if (in_force := self._in_force) is not None:
            pool = in_force.policy.pool
            if passage.tenant and (tenant := in_force.tenant(passage.tenant)) is not None:
                tier = tenant.tier
        return passage.record(outcome, pool, tier, now)
