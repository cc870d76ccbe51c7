"""From the sidecars' counters to figures: sums and differences by tier and tenant. Pure.

A sidecar's totals only rise while it runs, so what happened in a window is the difference of two
readings, and nothing is lost to a reading that was missed. The difference is taken for each sidecar
by itself and then summed: pods come and go without a jump. A sidecar that started within the window
counts from zero, as does a tier, tenant or objective that went and came back: its totals began
anew, and are below those that were read. Of a sidecar that was first read within the window only a
part of it is known, so that the pool's figures are not whole (:attr:`PoolFigures.whole`) and no
status is written from them: an operator that has just started leaves what its predecessor wrote.
Quantiles come from the summed histograms (:mod:`tidegate_operator.latency_buckets`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tidegate.scheduling.contracts import (
    LimitUse,
    Refusal,
    SidecarStatus,
    SloStatus,
    TenantStatus,
    TierStatus,
)
from tidegate.scheduling.outcomes import Outcome
from tidegate_operator.latency_buckets import Buckets
from tidegate_operator.slo.promises import Kept, Promise

NOT_REFUSED = frozenset(
    {
        Outcome.COMPLETED.value,
        Outcome.CLIENT_CLOSED.value,
        Outcome.ENGINE_FAILED.value,
        Outcome.HANDED_BACK.value,
    }
)
"""Outcomes that are no refusal of ours."""

READINGS_PER_WINDOW = 6


Row = TypeVar("Row", TierStatus, TenantStatus)


@dataclass(frozen=True, slots=True)
class Reading:
    """One answer of one sidecar's ``/status``."""

    at_seconds: float
    """On the reader's monotonic clock."""
    wall_seconds: float
    status: SidecarStatus


@dataclass(slots=True)
class Figures:
    """One tier or tenant, over any number of sidecars."""

    tier: str = ""
    queued: int = 0
    running: int = 0
    oldest_wait_seconds: float = 0.0
    """Of the one that waits longest now; 0: none waits."""
    service_tokens: int = 0
    """Within the window."""
    refused: dict[str, int] = field(default_factory=dict)
    """Since the sidecars started, by reason."""
    refused_lately: dict[str, int] = field(default_factory=dict)
    """Within the window, by reason."""
    ttft: Buckets = field(default_factory=Buckets)
    queue_wait: Buckets = field(default_factory=Buckets)
    end_to_end: Buckets = field(default_factory=Buckets)
    inter_token: Buckets = field(default_factory=Buckets)
    last_refusal: Refusal | None = None
    completed: int = 0
    """Requests, within the window."""
    engine_time_ms: float = 0.0
    """Charged within the window."""
    promised: dict[str, Kept] = field(default_factory=dict)
    """By metric, within the window."""
    promised_total: dict[str, Kept] = field(default_factory=dict)
    """By metric, since the sidecars started."""
    drafted_tokens: int = 0
    """Within the window."""
    accepted_tokens: int = 0
    preemptions: int = 0
    """Since the sidecars started."""
    skew_flagged: int = 0
    """Since the sidecars started."""
    kv_held_blocks: int | None = None
    """None: nobody counts them."""
    limits: dict[str, LimitUse] = field(default_factory=dict)
    """By name."""

    def add_tier(self, new: TierStatus, old: TierStatus | None) -> None:
        """Add what one sidecar did for the tier."""
        self._add_counts(new, old)
        self.ttft.add(new.ttft_seconds, old.ttft_seconds if old else None)
        self.queue_wait.add(new.queue_seconds, old.queue_seconds if old else None)
        self.end_to_end.add(new.duration_seconds, old.duration_seconds if old else None)
        self.inter_token.add(new.inter_token_seconds, old.inter_token_seconds if old else None)
        before = {slo.metric: slo for slo in old.slo} if old else {}
        for slo in new.slo:
            metric = str(slo.metric)
            last = before.get(slo.metric)
            if last is None or slo.requests_total < last.requests_total:
                last = SloStatus(slo.metric, refused_total=0)
            refused = (
                None
                if slo.refused_total is None or last.refused_total is None
                else slo.refused_total - last.refused_total
            )
            self.promised.setdefault(metric, Kept()).add(
                slo.requests_total - last.requests_total, slo.good_total - last.good_total, refused
            )
            total = self.promised_total.setdefault(metric, Kept())
            total.add(slo.requests_total, slo.good_total, slo.refused_total)
        self.drafted_tokens += new.drafted_tokens_total - (old.drafted_tokens_total if old else 0)
        self.accepted_tokens += new.accepted_tokens_total - (
            old.accepted_tokens_total if old else 0
        )
        self.preemptions += new.preemptions_total
        self.skew_flagged += new.vft_skew_flagged_total
        if new.kv_held_blocks is not None:
            self.kv_held_blocks = (self.kv_held_blocks or 0) + new.kv_held_blocks

    def add_tenant(self, new: TenantStatus, old: TenantStatus | None, *, shared: bool) -> None:
        """Add what one sidecar did for the tenant; ``shared``: its limits count all pods."""
        self.tier = new.tier
        self._add_counts(new, old)
        self.ttft.add(new.ttft_seconds, old.ttft_seconds if old else None)
        self._refused_last(new.last_refusal)
        self.add_limits(new.limits, shared=shared)

    def add_limits(self, uses: Iterable[LimitUse], *, shared: bool) -> None:
        """Sum what each counts for itself; of what they count together, the highest is newest."""
        join = max if shared else _sum
        for use in uses:
            known = self.limits.get(use.name)
            if known is not None:
                use = LimitUse(
                    use.name,
                    use.per,
                    use.requests,
                    join(known.requests_used, use.requests_used),
                    use.tokens,
                    join(known.tokens_used, use.tokens_used),
                )
            self.limits[use.name] = use

    def merge(self, other: Figures) -> None:
        """Add the same tier's or tenant's figures of another pool, all but its limits."""
        self.tier = self.tier or other.tier
        self.queued += other.queued
        self.running += other.running
        self.oldest_wait_seconds = max(self.oldest_wait_seconds, other.oldest_wait_seconds)
        self.service_tokens += other.service_tokens
        self.completed += other.completed
        self.engine_time_ms += other.engine_time_ms
        for mine, theirs in (
            (self.refused, other.refused),
            (self.refused_lately, other.refused_lately),
        ):
            for reason, count in theirs.items():
                mine[reason] = mine.get(reason, 0) + count
        self.ttft.merge(other.ttft)
        self.queue_wait.merge(other.queue_wait)
        self.end_to_end.merge(other.end_to_end)
        self.inter_token.merge(other.inter_token)
        self._refused_last(other.last_refusal)
        for metric, kept in other.promised.items():
            self.promised.setdefault(metric, Kept()).add(kept.requests, kept.good, kept.refused)
        self.drafted_tokens += other.drafted_tokens
        self.accepted_tokens += other.accepted_tokens
        self.preemptions += other.preemptions
        self.skew_flagged += other.skew_flagged
        if other.kv_held_blocks is not None:
            self.kv_held_blocks = (self.kv_held_blocks or 0) + other.kv_held_blocks

    def _add_counts(
        self, new: TierStatus | TenantStatus, old: TierStatus | TenantStatus | None
    ) -> None:
        self.queued += new.queued
        self.running += new.running
        self.oldest_wait_seconds = max(self.oldest_wait_seconds, new.oldest_wait_seconds)
        self.service_tokens += new.service_tokens_total - (old.service_tokens_total if old else 0)
        self.engine_time_ms += new.engine_time_ms_total - (old.engine_time_ms_total if old else 0.0)
        before = old.requests_total if old else {}
        done = Outcome.COMPLETED.value
        self.completed += new.requests_total.get(done, 0) - before.get(done, 0)
        for reason, count in new.requests_total.items():
            if reason in NOT_REFUSED:
                continue
            if count:
                self.refused[reason] = self.refused.get(reason, 0) + count
            if lately := count - before.get(reason, 0):
                self.refused_lately[reason] = self.refused_lately.get(reason, 0) + lately

    def _refused_last(self, refusal: Refusal | None) -> None:
        if refusal and (self.last_refusal is None or refusal.at > self.last_refusal.at):
            self.last_refusal = refusal


def _sum(one: int, other: int) -> int:
    return one + other


@dataclass(slots=True)
class KvPoolFigures:
    """One KV pool over the engines of a pool, in blocks."""

    nominal: int = 0
    held: int = 0
    borrowed: int = 0


@dataclass(slots=True)
class PoolFigures:
    """Tiers and tenants of one pool, and what is known of it besides."""

    tiers: dict[str, Figures] = field(default_factory=dict)
    tenants: dict[str, Figures] = field(default_factory=dict)
    whole: bool = True
    """All of the window was seen of each sidecar that ran in it."""
    observed_ms: float = 0.0
    """Of the window, summed over the sidecars."""
    kv_pools: dict[str, KvPoolFigures] = field(default_factory=dict)
    kv_pool_of: Mapping[str, str] = field(default_factory=dict)
    """KV pool of each tier that is in one; the others share the one without a name."""
    pod_hour: float | None = None
    """Price of an hour of one pod; None: none is named."""
    shared_state: str | None = None
    """Address of the server in which its pods count together; None: each counts for itself."""
    promises: tuple[Promise, ...] = ()

    @property
    def service_tokens(self) -> int:
        return sum(tier.service_tokens for tier in self.tiers.values())

    @property
    def kept_since_start(self) -> dict[tuple[str, str], Kept]:
        """Of each tier's objectives."""
        return {
            (name, metric): kept
            for name, tier in self.tiers.items()
            for metric, kept in tier.promised_total.items()
        }


def pool_figures(sidecars: Iterable[Sequence[Reading]], window_seconds: float) -> PoolFigures:
    """The figures of a pool from the readings of each sidecar, oldest first."""
    pool = PoolFigures()
    for readings in sidecars:
        if not readings:
            continue
        base = _base(readings, window_seconds)
        new, old = readings[-1].status, base.status if base else None
        pool.whole &= base is None or _seconds_between(base, readings[-1]) >= window_seconds
        since = base.wall_seconds if base else new.started_at
        pool.observed_ms += 1000.0 * max(0.0, readings[-1].wall_seconds - since)
        old_tiers = {tier.name: tier for tier in old.tiers} if old else {}
        old_tenants = {tenant.name: tenant for tenant in old.tenants} if old else {}
        for tier in new.tiers:
            before = counted_from(old_tiers.get(tier.name), tier)
            pool.tiers.setdefault(tier.name, Figures()).add_tier(tier, before)
        shared = new.shared_state is not None and new.shared_state.available
        for tenant in new.tenants:
            pool.tenants.setdefault(tenant.name, Figures()).add_tenant(
                tenant, counted_from(old_tenants.get(tenant.name), tenant), shared=shared
            )
        for blocks in new.kv_pools:
            sums = pool.kv_pools.setdefault(blocks.name, KvPoolFigures())
            sums.nominal += blocks.nominal_blocks
            sums.held += blocks.held_blocks
            sums.borrowed += blocks.borrowed_blocks
    return pool


def counted_from(old: Row | None, new: Row) -> Row | None:
    """What the totals of a tier or tenant of one sidecar go on from; None: they began anew."""
    if old is None or new.service_tokens_total < old.service_tokens_total:
        return None
    ended = new.requests_total
    return old if all(ended.get(key, 0) >= n for key, n in old.requests_total.items()) else None


def merged(parts: Iterable[Figures]) -> Figures:
    """The sum of several pools."""
    total = Figures()
    for part in parts:
        total.merge(part)
    return total


def worst_pool(figures: Mapping[str, Figures]) -> str | None:
    """The pool with the highest 99th percentile of the time to first token."""
    measured = {
        name: found for name, part in figures.items() if (found := part.ttft.quantile_ms(0.99))
    }
    return max(sorted(measured), key=lambda name: measured[name], default=None)


def keep_reading(readings: deque[Reading], new: Reading, window_seconds: float) -> None:
    """Append the next reading of the same run. Those before stay at some distance from each other
    (a large pool's are megabytes each), and one that is a window old as what to count from."""
    apart_seconds = window_seconds / READINGS_PER_WINDOW
    if len(readings) > 1 and _seconds_between(readings[-2], readings[-1]) < apart_seconds:
        readings.pop()
    readings.append(new)
    while len(readings) > 1 and _seconds_between(readings[1], new) >= window_seconds:
        readings.popleft()


def _base(readings: Sequence[Reading], window_seconds: float) -> Reading | None:
    """What to count from: the newest reading that is a window old, else the oldest of this run;
    None where the sidecar started within the window."""
    newest = readings[-1]
    run = [r for r in readings if r.status.started_at == newest.status.started_at]
    old = [r for r in run if _seconds_between(r, newest) >= window_seconds]
    if old:
        return old[-1]
    if newest.wall_seconds - newest.status.started_at <= window_seconds:
        return None
    return run[0]


def _seconds_between(one: Reading, later: Reading) -> float:
    return later.at_seconds - one.at_seconds
