"""Figures as the status of each kind has them. Pure.

Nothing is said before a whole window was seen (None): what stands in the status stays until then.

Invariant: what a pool's figures take of its status is bounded (:data:`MAX_FIGURES_BYTES`), so that
the whole stays below 32 kB; where 64 busy tiers would take more, those that were given least keep
their queues alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tidegate.scheduling.contracts import LimitUse
from tidegate_operator.api.figures import MAX_TOP_TENANTS
from tidegate_operator.api.limits import MAX_RATE_LIMITS
from tidegate_operator.figures import Figures, PoolFigures, merged, worst_pool
from tidegate_operator.json_merge import without_nulls
from tidegate_operator.prices import price_per_1000_calls
from tidegate_operator.slo.promises import Promise, plain_percent, worst

Json = dict[str, Any]

MAX_FIGURES_BYTES = 14_000
"""Of a pool's tiers and tenants, as JSON."""
_LOAD = ("queued", "running", "oldestWaitMs", "ttft", "queueWait", "refused")
_TIER = (
    *_LOAD, "endToEnd", "interToken", "sharePercent", "busyPercent", "pricePer1000Calls",
    "objectives", "kv", "draftAcceptancePercent", "preemptions", "vftSkewFlagged",
)  # fmt: skip
_TENANT = (
    *_LOAD, "sharePercent", "refusedSummary", "lastRefusal", "limits", "limitSummary",
)  # fmt: skip
_POOL = ("queued", "running", "tierSummary", "tiers", "tenants", "refusedTenants")


def percent(part: float, whole: float) -> int | None:
    """The share, in whole percent; None where nothing was served."""
    return min(100, round(100 * part / whole)) if whole > 0 else None


def pool_status(figures: PoolFigures, served_tiers: Sequence[str]) -> Json | None:
    """The figures as ``ServingPool.status`` has them; all null where nothing was read."""
    if not figures.whole:
        return None
    if not figures.tiers:
        return dict.fromkeys(_POOL)
    tiers = {name: figures.tiers.get(name, Figures()) for name in served_tiers}
    rows = [{"name": name, **_tier_row(name, {"": figures})} for name in tiers]
    for row in rows:
        for objective in row["objectives"] or ():
            objective.pop("pool", None)
    summary = " ".join(
        f"{name} {tier.queued}/{tier.running}"
        for name, tier in tiers.items()
        if tier.queued or tier.running
    )
    found = {
        "queued": sum(tier.queued for tier in tiers.values()),
        "running": sum(tier.running for tier in tiers.values()),
        "tierSummary": summary[:1024] or "idle",
        "tiers": [without_nulls(row) for row in rows],
        "tenants": _busiest(figures),
        "refusedTenants": _most_refused(figures) or None,
    }
    _bound(found, tiers)
    return found


def tier_figures(name: str, pools: Mapping[str, PoolFigures]) -> Json | None:
    """Of one tier over all pools that serve it."""
    serving = {pool: figures for pool, figures in pools.items() if name in figures.tiers}
    if not serving:
        return dict.fromkeys((*_TIER, "worstPool"))
    if not all(figures.whole for figures in serving.values()):
        return None
    of_tier = {pool: figures.tiers[name] for pool, figures in serving.items()}
    return _tier_row(name, serving) | {"worstPool": worst_pool(of_tier)}


def tenant_figures(name: str, pools: Mapping[str, PoolFigures]) -> Json | None:
    """Of one tenant over all pools that know it."""
    knowing = [pool for pool in pools.values() if name in pool.tenants]
    if not knowing:
        return dict.fromkeys(_TENANT)
    if not all(pool.whole for pool in knowing):
        return None
    total = merged(pool.tenants[name] for pool in knowing)
    limits = [_limit(use) for use in _limits(name, knowing)]
    fullest = sorted(limits, key=lambda row: (-row["usedPercent"], row["name"]))
    return _load(total) | {
        "sharePercent": percent(total.service_tokens, sum(p.service_tokens for p in knowing)),
        "refusedSummary": _summary(total.refused),
        "lastRefusal": _last_refusal(total),
        "limits": limits[: 2 * MAX_RATE_LIMITS] or None,
        "limitSummary": " ".join(f"{row['name']} {row['usedPercent']}%" for row in fullest)[:256]
        or None,
    }


def _load(total: Figures) -> Json:
    """What every kind's status says; null where nothing is known."""
    return {
        "queued": total.queued,
        "running": total.running,
        "oldestWaitMs": _oldest_wait_ms(total),
        "ttft": total.ttft.latency(),
        "queueWait": total.queue_wait.latency(),
        "refused": dict(sorted(total.refused.items())) or None,
    }


def _oldest_wait_ms(total: Figures) -> int | None:
    return round(1000 * total.oldest_wait_seconds) or None


def _tier_row(name: str, pools: Mapping[str, PoolFigures]) -> Json:
    """One tier over the pools; all keys of :data:`_TIER`."""
    of_tier = [(pool, pool.tiers.get(name, Figures())) for pool in pools.values()]
    total = merged(tier for _, tier in of_tier)
    whole = sum(pool.service_tokens for pool in pools.values())
    observed_ms = sum(pool.observed_ms for pool in pools.values())
    promises = [p for pool in pools.values() for p in pool.promises if p.tier == name]
    return _load(total) | {
        "endToEnd": total.end_to_end.latency(),
        "interToken": total.inter_token.latency(),
        "sharePercent": percent(total.service_tokens, whole),
        "busyPercent": percent(total.engine_time_ms, observed_ms),
        "pricePer1000Calls": _price(of_tier),
        "objectives": _objectives(total, promises),
        "kv": _kv(name, total, pools.values()),
        "draftAcceptancePercent": percent(total.accepted_tokens, total.drafted_tokens),
        "preemptions": total.preemptions or None,
        "vftSkewFlagged": total.skew_flagged or None,
    }


def _price(of_tier: Iterable[tuple[PoolFigures, Figures]]) -> str | None:
    """Of the calls in pools that have a price."""
    priced = [(pool.pod_hour, tier) for pool, tier in of_tier if pool.pod_hour is not None]
    calls = sum(tier.completed for _, tier in priced)
    # So that one rule rounds: the engine time at a price of 1.
    weighted_ms = sum(hour * tier.engine_time_ms for hour, tier in priced)
    return price_per_1000_calls(1.0 if priced else None, weighted_ms, calls)


def _objectives(tier: Figures, promises: Sequence[Promise]) -> list[Json] | None:
    """Each metric that is promised, of the pool that has least budget left."""
    by_metric: dict[str, list[Promise]] = {}
    for promise in promises:
        by_metric.setdefault(str(promise.objective.metric), []).append(promise)
    rows = []
    for metric in sorted(by_metric.keys() | tier.promised.keys()):
        row: Json = {"metric": metric}
        if kept := tier.promised.get(metric):
            row["requests"] = kept.requests
            # Rounded down, as 100 shall mean all.
            row["keptPercent"] = 100 * kept.good // kept.requests if kept.requests else None
            if kept.good < kept.requests:
                row |= {"refused": kept.refused, "late": kept.late}
        if metric in by_metric:
            row |= _promise(worst(by_metric[metric]))
        rows.append(without_nulls(row))
    return rows or None


def _promise(promise: Promise) -> Json:
    return {
        "targetMs": round(1000 * promise.objective.target_seconds),
        "promisedPercent": plain_percent(promise.objective.ratio_percent),
        "attainedPercent": promise.attained,
        "budgetLeftPercent": promise.budget_left_percent,
        "measured": None if promise.attained is None else str(promise.measured),
        "pool": promise.pool,
    }


def _kv(name: str, tier: Figures, pools: Iterable[PoolFigures]) -> Json | None:
    """Where the tier's KV pools are known."""
    mine = [
        known
        for pool in pools
        if (known := pool.kv_pools.get(pool.kv_pool_of.get(name, ""))) is not None
    ]
    if not any(known.nominal for known in mine):
        return None
    return without_nulls(
        {
            "heldBlocks": tier.kv_held_blocks,
            "quotaBlocks": sum(known.nominal for known in mine),
            "borrowedBlocks": sum(known.borrowed for known in mine),
        }
    )


def _busiest(figures: PoolFigures) -> list[Json]:
    """Those that took most; of the rest those that wait longest, else likewise."""
    whole = figures.service_tokens
    busiest = sorted(
        (
            (name, tenant)
            for name, tenant in figures.tenants.items()
            if tenant.service_tokens or tenant.queued or tenant.running
        ),
        key=lambda item: (-item[1].service_tokens, -item[1].queued, item[0]),
    )
    half = MAX_TOP_TENANTS // 2
    # Who is starved takes nothing, and is to be seen all the same.
    others = sorted(busiest[half:], key=lambda item: -item[1].oldest_wait_seconds)
    return [
        without_nulls(
            {
                "name": name,
                "tier": tenant.tier,
                "queued": tenant.queued,
                "running": tenant.running,
                "oldestWaitMs": _oldest_wait_ms(tenant),
                "ttft": tenant.ttft.latency(),
                "sharePercent": percent(tenant.service_tokens, whole),
            }
        )
        for name, tenant in [*busiest[:half], *others][:MAX_TOP_TENANTS]
    ]


def _most_refused(figures: PoolFigures) -> list[Json]:
    """Within the window."""
    refused = sorted(
        (
            (name, sum(tenant.refused_lately.values()), tenant)
            for name, tenant in figures.tenants.items()
            if tenant.refused_lately
        ),
        key=lambda item: (-item[1], item[0]),
    )
    return [
        without_nulls(
            {
                "name": name,
                "tier": tenant.tier,
                "refused": count,
                "why": _summary(tenant.refused_lately),
                "limit": tenant.last_refusal.limit if tenant.last_refusal else None,
            }
        )
        for name, count, tenant in refused[:MAX_TOP_TENANTS]
    ]


def _summary(counts: Mapping[str, int]) -> str | None:
    """The refusals in short, most first."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return " ".join(f"{count} {reason}" for reason, count in ranked)[:256] or None


def _last_refusal(tenant: Figures) -> Json | None:
    refusal = tenant.last_refusal
    if refusal is None:
        return None
    when = datetime.fromtimestamp(int(refusal.at), UTC)
    told = {"reason": refusal.reason, "time": when.strftime("%Y-%m-%dT%H:%M:%SZ")}
    return told | ({"limit": refusal.limit} if refusal.limit is not None else {})


def _limits(name: str, pools: Sequence[PoolFigures]) -> list[LimitUse]:
    """Over all pools: summed, but for those that count on the same server."""
    total, by_server = Figures(), dict[str, Figures]()
    for pool in pools:
        uses = pool.tenants[name].limits.values()
        if pool.shared_state is None:
            total.add_limits(uses, shared=False)
        else:
            together = by_server.setdefault(pool.shared_state, Figures())
            together.add_limits(uses, shared=True)
    for together in by_server.values():
        total.add_limits(together.limits.values(), shared=False)
    return [use for _, use in sorted(total.limits.items())]


def _limit(use: LimitUse) -> Json:
    parts = ((use.requests, use.requests_used), (use.tokens, use.tokens_used))
    row: Json = {
        "name": use.name,
        "per": str(use.per),
        "usedPercent": max([100 * used // most for most, used in parts if most], default=0),
    }
    for (most, used), key in zip(parts, ("requests", "tokens"), strict=True):
        if most is not None:
            row |= {key: most, f"{key}Used": used}
    return row


def _bound(status: Json, tiers: Mapping[str, Figures]) -> None:
    """Cut down rows of tiers until the whole is small enough, those that were given least first."""
    by_name = {row["name"]: row for row in status["tiers"]}
    too_much = len(json.dumps(status)) - MAX_FIGURES_BYTES
    for name in sorted(tiers, key=lambda name: (tiers[name].service_tokens, name)):
        if too_much <= 0:
            return
        row = by_name[name]
        too_much -= len(json.dumps(row))
        for key in row.keys() - {"name", "queued", "running"}:
            del row[key]
        too_much += len(json.dumps(row))
