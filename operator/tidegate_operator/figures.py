"""From the sidecars' counters to the figures of a status: sums, shares and quantiles. Pure.

A sidecar's totals only rise while it runs, so what happened in a window is the difference of two
readings, and nothing is lost to a reading that was missed. The difference is taken for each sidecar
by itself and then summed: pods come and go without a jump. A sidecar that started within the window
counts from zero; one that was first read within it counts from that reading. Quantiles come from
the summed histograms, never from quantiles of quantiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tidegate.scheduling.contracts import (
    Histogram,
    Refusal,
    SidecarStatus,
    TenantStatus,
    TierStatus,
)
from tidegate.scheduling.outcomes import Outcome
from tidegate_operator.json_merge import without_nulls
from tidegate_operator.prices import price_per_1000_calls

Json = dict[str, Any]

NOT_REFUSED = frozenset(
    {Outcome.COMPLETED.value, Outcome.CLIENT_CLOSED.value, Outcome.ENGINE_FAILED.value}
)
"""Outcomes that are no refusal of ours."""
TOP_TENANTS = 10


@dataclass(frozen=True, slots=True)
class Reading:
    """One answer of one sidecar's ``/status``."""

    at_seconds: float
    """On the reader's monotonic clock."""
    wall_seconds: float
    status: SidecarStatus


@dataclass(slots=True)
class Buckets:
    """Observations by bucket, of several sidecars with equal bounds."""

    bounds: tuple[float, ...] = ()
    counts: list[int] = field(default_factory=list)

    def add(self, new: Histogram | None, old: Histogram | None) -> None:
        """Count what was observed between two states of one histogram."""
        if new is None or not new.counts:
            return
        if not self.counts:
            self.bounds, self.counts = new.bounds, [0] * len(new.counts)
        if new.bounds != self.bounds:
            return
        before = old.counts if old and old.bounds == new.bounds and old.counts else None
        for place, count in enumerate(new.counts):
            self.counts[place] += count - (before[place] if before else 0)

    def merge(self, other: Buckets) -> None:
        """Add the other's observations."""
        self.add(Histogram(other.bounds, tuple(other.counts)), None)

    def quantile_ms(self, quantile: float) -> int | None:
        """Milliseconds, interpolated within the bucket, to two digits; None without observations.

        More digits would be noise, and a difference in noise would be a write.
        """
        total = sum(self.counts)
        if total <= 0:
            return None
        rank, seen = quantile * total, 0
        for place, count in enumerate(self.counts):
            if count and seen + count >= rank:
                if place >= len(self.bounds):
                    return _two_digits(self.bounds[-1] * 1000)
                low = self.bounds[place - 1] if place else 0.0
                part = (rank - seen) / count
                return _two_digits((low + (self.bounds[place] - low) * part) * 1000)
            seen += count
        return None

    def latency(self) -> Json:
        """p50 and p99 as a status has them."""
        return {"p50Ms": self.quantile_ms(0.5), "p99Ms": self.quantile_ms(0.99)}


@dataclass(slots=True)
class Figures:
    """One tier or tenant, over any number of sidecars."""

    tier: str = ""
    queued: int = 0
    running: int = 0
    service_tokens: int = 0
    """Within the window."""
    refused: dict[str, int] = field(default_factory=dict)
    """Since the sidecars started."""
    ttft: Buckets = field(default_factory=Buckets)
    queue_wait: Buckets = field(default_factory=Buckets)
    last_refusal: Refusal | None = None
    completed: int = 0
    """Requests, within the window."""
    engine_time_ms: float = 0.0
    """Charged within the window."""
    promised: dict[str, list[int]] = field(default_factory=dict)
    """Of each objective: requests that count for it within the window, and those that kept it."""

    def add_tier(self, new: TierStatus, old: TierStatus | None) -> None:
        """Add what one sidecar did for the tier."""
        self._add_counts(new, old)
        self.ttft.add(new.ttft_seconds, old.ttft_seconds if old else None)
        self.queue_wait.add(new.queue_seconds, old.queue_seconds if old else None)
        before = {slo.metric: slo for slo in old.slo} if old else {}
        for slo in new.slo:
            last, sums = before.get(slo.metric), self.promised.setdefault(slo.metric, [0, 0])
            sums[0] += slo.requests_total - (last.requests_total if last else 0)
            sums[1] += slo.good_total - (last.good_total if last else 0)

    def add_tenant(self, new: TenantStatus, old: TenantStatus | None) -> None:
        """Add what one sidecar did for the tenant."""
        self.tier = new.tier
        self._add_counts(new, old)
        self.ttft.add(new.ttft_seconds, old.ttft_seconds if old else None)
        self._refused_last(new.last_refusal)

    def merge(self, other: Figures) -> None:
        """Add the same tier's or tenant's figures of another pool."""
        self.tier = self.tier or other.tier
        self.queued += other.queued
        self.running += other.running
        self.service_tokens += other.service_tokens
        for reason, count in other.refused.items():
            self.refused[reason] = self.refused.get(reason, 0) + count
        self.ttft.merge(other.ttft)
        self.queue_wait.merge(other.queue_wait)
        self._refused_last(other.last_refusal)

    def load(self) -> Json:
        """What every kind's status says of it; null where nothing is known."""
        return {
            "queued": self.queued,
            "running": self.running,
            "ttft": self.ttft.latency(),
            "queueWait": self.queue_wait.latency(),
            "refused": dict(sorted(self.refused.items())) or None,
        }

    def refused_summary(self) -> str | None:
        """The refusals in short, most first."""
        ranked = sorted(self.refused.items(), key=lambda item: (-item[1], item[0]))
        return " ".join(f"{count} {reason}" for reason, count in ranked)[:256] or None

    def last_refusal_status(self) -> Json | None:
        if self.last_refusal is None:
            return None
        when = datetime.fromtimestamp(int(self.last_refusal.at), UTC)
        return {
            "reason": self.last_refusal.reason,
            "time": when.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    def _add_counts(
        self, new: TierStatus | TenantStatus, old: TierStatus | TenantStatus | None
    ) -> None:
        self.queued += new.queued
        self.running += new.running
        self.service_tokens += new.service_tokens_total - (old.service_tokens_total if old else 0)
        self.engine_time_ms += new.engine_time_ms_total - (old.engine_time_ms_total if old else 0.0)
        done = Outcome.COMPLETED.value
        before = old.requests_total.get(done, 0) if old else 0
        self.completed += new.requests_total.get(done, 0) - before
        for reason, count in new.requests_total.items():
            if count and reason not in NOT_REFUSED:
                self.refused[reason] = self.refused.get(reason, 0) + count

    def _refused_last(self, refusal: Refusal | None) -> None:
        if refusal and (self.last_refusal is None or refusal.at > self.last_refusal.at):
            self.last_refusal = refusal


@dataclass(slots=True)
class PoolFigures:
    """Tiers and tenants of one pool."""

    tiers: dict[str, Figures] = field(default_factory=dict)
    tenants: dict[str, Figures] = field(default_factory=dict)
    observed_ms: float = 0.0
    """Of the window, summed over the sidecars."""

    @property
    def service_tokens(self) -> int:
        return sum(tier.service_tokens for tier in self.tiers.values())


def pool_figures(sidecars: Iterable[Sequence[Reading]], window_seconds: float) -> PoolFigures:
    """The figures of a pool from the readings of each sidecar, oldest first."""
    pool = PoolFigures()
    for readings in sidecars:
        if not readings:
            continue
        base = _base(readings, window_seconds)
        new, old = readings[-1].status, base.status if base else None
        since = base.wall_seconds if base else new.started_at
        pool.observed_ms += 1000.0 * max(0.0, readings[-1].wall_seconds - since)
        old_tiers = {tier.name: tier for tier in old.tiers} if old else {}
        old_tenants = {tenant.name: tenant for tenant in old.tenants} if old else {}
        for tier in new.tiers:
            pool.tiers.setdefault(tier.name, Figures()).add_tier(tier, old_tiers.get(tier.name))
        for tenant in new.tenants:
            pool.tenants.setdefault(tenant.name, Figures()).add_tenant(
                tenant, old_tenants.get(tenant.name)
            )
    return pool


def percent(part: float, whole: float) -> int | None:
    """The share, in whole percent; None where nothing was served."""
    return min(100, round(100 * part / whole)) if whole > 0 else None


def pool_status(
    figures: PoolFigures, served_tiers: Sequence[str], pod_hour: float | None = None
) -> Json:
    """The figures as ``ServingPool.status`` has them; all null where nothing was read. ``pod_hour``
    is the price of an hour of one pod."""
    if not figures.tiers:
        return dict.fromkeys(("queued", "running", "tierSummary", "tiers", "tenants"))
    whole = figures.service_tokens
    tiers = []
    for name in served_tiers:
        tier = figures.tiers.get(name, Figures())
        share = percent(tier.service_tokens, whole)
        told = {
            "name": name,
            "sharePercent": share,
            "busyPercent": percent(tier.engine_time_ms, figures.observed_ms),
            "pricePer1000Calls": price_per_1000_calls(
                pod_hour, tier.engine_time_ms, tier.completed
            ),
            "objectives": _objectives(tier),
        }
        tiers.append(told | tier.load())
    busiest = sorted(
        (
            (name, tenant)
            for name, tenant in figures.tenants.items()
            if tenant.service_tokens or tenant.queued or tenant.running
        ),
        key=lambda item: (-item[1].service_tokens, -item[1].queued, item[0]),
    )
    served = [figures.tiers[name] for name in served_tiers if name in figures.tiers]
    summary = " ".join(
        f"{entry['name']} {entry['queued']}/{entry['running']}"
        for entry in tiers
        if entry["queued"] or entry["running"]
    )
    return {
        "queued": sum(tier.queued for tier in served),
        "running": sum(tier.running for tier in served),
        "tierSummary": summary[:1024] or "idle",
        "tiers": [without_nulls(entry) for entry in tiers],
        "tenants": [
            without_nulls(
                {
                    "name": name,
                    "tier": tenant.tier,
                    "queued": tenant.queued,
                    "running": tenant.running,
                    "sharePercent": percent(tenant.service_tokens, whole),
                }
            )
            for name, tenant in busiest[:TOP_TENANTS]
        ],
    }


def _objectives(tier: Figures) -> list[Json] | None:
    """How many of a tier's promises were kept; rounded down, as 100 shall mean all."""
    rows = [
        {"metric": metric, "requests": count, "keptPercent": 100 * good // count if count else None}
        for metric, (count, good) in sorted(tier.promised.items())
    ]
    return [without_nulls(row) for row in rows] or None


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


def _base(readings: Sequence[Reading], window_seconds: float) -> Reading | None:
    """What to count from: the newest reading that is a window old, else the oldest of this run;
    None where the sidecar started within the window."""
    newest = readings[-1]
    run = [r for r in readings if r.status.started_at == newest.status.started_at]
    old = [r for r in run if newest.at_seconds - r.at_seconds >= window_seconds]
    if old:
        return old[-1]
    if newest.wall_seconds - newest.status.started_at <= window_seconds:
        return None
    return run[0]


def _two_digits(value: float) -> int:
    if value < 1:
        return round(value)
    scale = 10.0 ** (math.floor(math.log10(value)) - 1)
    return round(round(value / scale) * scale)
