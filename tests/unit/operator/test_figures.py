"""Figures from readings: differences, restarts, shares, merged quantiles."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from tidegate_operator import api
from tidegate_operator.figures import Reading, keep_reading, pool_figures, worst_pool
from tidegate_operator.figures_status import pool_status, tenant_figures, tier_figures
from tidegate_operator.latency_buckets import Buckets
from tidegate_operator.slo.promises import Kept

from tidegate.scheduling.contracts import (
    Histogram,
    Refusal,
    SidecarStatus,
    SloMetric,
    SloStatus,
    TenantStatus,
    TierStatus,
)

BOUNDS = (0.1, 1.0, 10.0)


def histogram(*counts: int) -> Histogram:
    return Histogram(BOUNDS, counts)


def tier(name: str, tokens: int, *counts: int, **more: Any) -> TierStatus:
    return TierStatus(
        name, service_tokens_total=tokens, ttft_seconds=histogram(*counts or (0, 0, 0, 0)), **more
    )


def reading(
    at: float, *tiers: TierStatus, started: float = 0.0, tenants: tuple[TenantStatus, ...] = ()
) -> Reading:
    status = SidecarStatus(1, "acme/chat", started, 1, tiers=tiers, tenants=tenants)
    return Reading(at, 10_000 + at, status)


def test_only_the_window_counts() -> None:
    readings = [
        reading(0, tier("t0", 100)),
        reading(50, tier("t0", 400)),
        reading(60, tier("t0", 900)),
    ]
    assert pool_figures([readings], 60).tiers["t0"].service_tokens == 800
    assert pool_figures([readings], 10).tiers["t0"].service_tokens == 500


@pytest.mark.parametrize("apart_seconds", [0.5, 5.0, 7.0, 30.0])
def test_few_readings_are_kept_and_one_that_is_a_window_old(apart_seconds: float) -> None:
    kept: deque[Reading] = deque()
    for number in range(400):
        now = number * apart_seconds
        keep_reading(kept, reading(now, tier("t", number)), 60.0)
        assert len(kept) <= 8
        assert kept[-1].at_seconds == now
        oldest = now - kept[0].at_seconds
        assert min(now, 60.0) <= oldest <= 60.0 + max(10.0 + apart_seconds, apart_seconds)


def test_no_status_is_written_before_a_whole_window_was_seen() -> None:
    """An operator that has just started leaves what its predecessor wrote."""
    mine = (TenantStatus("acme/a", "t0", service_tokens_total=900),)
    old = [reading(at, tier("t0", 900 + at), tenants=mine) for at in (5, 64, 65)]
    fresh = [reading(60, tier("t0", 70), started=10_050)]
    part = pool_figures([old[:2], fresh], 60)
    assert (part.whole, part.tiers["t0"].service_tokens) == (False, 129)
    assert pool_status(part, ["t0"]) is None
    whole = pool_figures([old, fresh], 60)
    assert (whole.whole, whole.tiers["t0"].service_tokens) == (True, 130)
    for pools, told in (({"a/x": whole, "a/y": part}, False), ({"a/x": whole}, True)):
        assert (tier_figures("t0", pools) is not None) is told
        assert (tenant_figures("acme/a", pools) is not None) is told


def test_a_sidecar_that_started_within_the_window_counts_from_zero() -> None:
    fresh = [reading(5, tier("t0", 70), started=10_000)]
    assert pool_figures([fresh], 60).tiers["t0"].service_tokens == 70
    restarted = [reading(0, tier("t0", 900)), reading(30, tier("t0", 40), started=10_020)]
    assert pool_figures([restarted], 60).tiers["t0"].service_tokens == 40


def test_what_went_and_came_back_within_the_window_counts_from_zero() -> None:
    """A Tenant that was deleted and made again; an objective that was; else a status is refused."""
    metric = SloMetric.TIME_TO_FIRST_TOKEN
    was = TenantStatus("acme/a", "t0", requests_total={"throttled": 9}, service_tokens_total=900)
    now = TenantStatus("acme/a", "t0", requests_total={"throttled": 2}, service_tokens_total=950)
    readings = [
        reading(
            0, tier("t0", 900, slo=(SloStatus(metric, 90, 80, 9),)), tier("t1", 50), tenants=(was,)
        ),
        reading(
            60, tier("t0", 1000, slo=(SloStatus(metric, 5, 2, 1),)), tier("t1", 7), tenants=(now,)
        ),
    ]
    found = pool_figures([readings], 60)
    assert [found.tiers[name].service_tokens for name in ("t0", "t1")] == [100, 7]
    assert found.tenants["acme/a"].service_tokens == 950
    assert found.tenants["acme/a"].refused_lately == {"throttled": 2}
    assert found.tiers["t0"].promised == {str(metric): Kept(5, 2, 1)}
    api.ServingPoolStatus.model_validate(pool_status(found, ["t0", "t1"]))


def test_shares_and_quantiles_are_over_all_sidecars() -> None:
    busy = [
        reading(0, tier("t0", 0), tier("t1", 0)),
        reading(60, tier("t0", 300, 98, 0, 0, 0), tier("t1", 100)),
    ]
    slow = [
        reading(0, tier("t0", 0), tier("t1", 0)),
        reading(60, tier("t0", 0, 0, 0, 2, 0, queued=3, running=1), tier("t1", 0)),
    ]
    status = pool_status(pool_figures([busy, slow], 60), ["t0", "t1"])
    first, second = status["tiers"]
    assert (first["sharePercent"], second["sharePercent"]) == (75, 25)
    assert first["ttft"]["p50Ms"] == 51
    assert first["ttft"]["p99Ms"] == 5500
    assert "ttft" not in second
    assert (status["queued"], status["running"], status["tierSummary"]) == (3, 1, "t0 3/1")


def test_the_ten_that_took_most_are_named_and_none_that_did_nothing() -> None:
    names = [f"acme/{i:02}" for i in range(14)]
    before = reading(0, tier("t0", 0), tenants=tuple(TenantStatus(n, "t0") for n in names))
    after = reading(
        60,
        tier("t0", 91),
        tenants=tuple(TenantStatus(n, "t0", service_tokens_total=i) for i, n in enumerate(names)),
    )
    status = pool_status(pool_figures([[before, after]], 60), ["t0"])
    assert [t["name"] for t in status["tenants"]] == names[:3:-1]
    starved = TenantStatus("acme/starved", "t0", queued=1, oldest_wait_seconds=300.0)
    after = reading(60, tier("t0", 91), tenants=(*after.status.tenants, starved))
    status = pool_status(pool_figures([[before, after]], 60), ["t0"])
    shown = [*names[:8:-1], "acme/starved", *names[8:4:-1]]
    assert [t["name"] for t in status["tenants"]] == shown
    idle = [before, reading(60, *before.status.tiers, tenants=before.status.tenants)]
    assert pool_status(pool_figures([idle], 60), ["t0"])["tenants"] == []


def test_a_tenant_over_two_pools() -> None:
    def figures(tokens: int, at: float) -> Any:
        mine = TenantStatus(
            "acme/a",
            "t0",
            queued=1,
            service_tokens_total=tokens,
            requests_total={"completed": 5, "queue_full": 2},
            last_refusal=Refusal("queue_full", at),
        )
        return pool_figures(
            [[reading(0, tier("t0", 0)), reading(60, tier("t0", 100), tenants=(mine,))]], 60
        )

    pools = {"acme/x": figures(50, 7), "acme/y": figures(30, 9)}
    found = tenant_figures("acme/a", pools)
    assert (found["queued"], found["sharePercent"]) == (2, 40)
    assert found["refused"] == {"queue_full": 4}
    assert found["refusedSummary"] == "4 queue_full"
    assert found["lastRefusal"] == {"reason": "queue_full", "time": "1970-01-01T00:00:09Z"}
    assert set(tenant_figures("acme/none", pools).values()) == {None}


def test_the_worst_pool_is_that_with_the_highest_p99() -> None:
    def pool(*counts: int) -> Any:
        return pool_figures([[reading(0, tier("t0", 0)), reading(60, tier("t0", 0, *counts))]], 60)

    pools = {"a/fast": pool(9, 0, 0, 0), "a/slow": pool(9, 0, 9, 0), "a/idle": pool(0, 0, 0, 0)}
    assert tier_figures("t0", pools)["worstPool"] == "a/slow"
    assert worst_pool({}) is None


@pytest.mark.parametrize(
    ("counts", "quantile", "expected"),
    [
        ((0, 0, 0, 0), 0.5, None),
        ((10, 0, 0, 0), 0.5, 50),
        ((0, 10, 0, 0), 0.0, 100),
        ((0, 10, 0, 0), 1.0, 1000),
        ((0, 0, 0, 5), 0.99, 10_000),
    ],
)
def test_quantiles_are_interpolated_within_the_bucket(
    counts: tuple[int, ...], quantile: float, expected: int | None
) -> None:
    buckets = Buckets()
    buckets.add(histogram(*counts), None)
    assert buckets.quantile_ms(quantile) == expected
