"""What a status says of tiers and tenants: KV, drafts, limits, who is refused, and its size."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tidegate_operator import api
from tidegate_operator.api.conditions import ConditionStatus, ConditionType, Reason
from tidegate_operator.api.limits import MAX_RATE_LIMITS
from tidegate_operator.api.status import MAX_TENANT_POOLS
from tidegate_operator.figures import PoolFigures, Reading, pool_figures
from tidegate_operator.figures_status import pool_status, tenant_figures, tier_figures
from tidegate_operator.findings import MESSAGE_LIMIT, Finding
from tidegate_operator.json_merge import without_nulls
from tidegate_operator.judge import TenantVerdict
from tidegate_operator.slo.promises import promises_of
from tidegate_operator.status import tenant_state_status

from tidegate.scheduling.contracts import (
    Histogram,
    KvPoolStatus,
    LimitUse,
    LimitWindow,
    Refusal,
    SharedStateStatus,
    SidecarStatus,
    SloMetric,
    SloObjective,
    SloStatus,
    TenantStatus,
    TierPolicy,
    TierStatus,
)
from tidegate.scheduling.outcomes import Outcome

HERE = SharedStateStatus(available=True, since=1.0)


def figures(*sidecars: tuple[SidecarStatus, SidecarStatus]) -> PoolFigures:
    """Each sidecar a minute ago and now."""
    readings = [[Reading(0, 1e9, old), Reading(60, 1e9 + 60, new)] for old, new in sidecars]
    return pool_figures(readings, 60.0)


def sidecar(*tiers: TierStatus, **rest: Any) -> SidecarStatus:
    return SidecarStatus(1, "a/b", 1.0, 1, tiers=tiers, **rest)


def tenant(name: str = "a/x", **rest: Any) -> TenantStatus:
    return TenantStatus(name, "t0", **rest)


def test_a_tier_holds_blocks_of_a_quota_that_it_may_share() -> None:
    pools = (KvPoolStatus("paid", 100, 120, 20), KvPoolStatus("", 50, 5, 0))
    now = sidecar(
        TierStatus("t0", kv_held_blocks=80), TierStatus("t3", kv_held_blocks=5), kv_pools=pools
    )
    found = figures((now, now), (now, now))
    found.kv_pool_of = {"t0": "paid"}
    paid, free = pool_status(found, ["t0", "t3"])["tiers"]
    assert paid["kv"] == {"heldBlocks": 160, "quotaBlocks": 200, "borrowedBlocks": 40}
    assert free["kv"] == {"heldBlocks": 10, "quotaBlocks": 100, "borrowedBlocks": 0}
    both = tier_figures("t0", {"a/b": found, "a/c": found})
    assert both["kv"] == {"heldBlocks": 320, "quotaBlocks": 400, "borrowedBlocks": 80}


def test_the_oldest_wait_is_the_longest_of_all_pods() -> None:
    first = Histogram((1.0, 2.0), (0, 1, 0), 1.5)
    one = sidecar(
        TierStatus("t0", queued=2, oldest_wait_seconds=12.5),
        tenants=(tenant(queued=2, oldest_wait_seconds=12.5, ttft_seconds=first),),
    )
    other = sidecar(
        TierStatus("t0", queued=1, oldest_wait_seconds=3.0),
        TierStatus("t1", running=1),
        tenants=(tenant(queued=1, oldest_wait_seconds=3.0),),
    )
    before = sidecar(TierStatus("t0"))
    found = figures((before, one), (before, other))
    status = pool_status(found, ["t0", "t1"])
    waits, idle = status["tiers"]
    assert (waits["queued"], waits["oldestWaitMs"]) == (3, 12500)
    assert "oldestWaitMs" not in idle
    (row,) = status["tenants"]
    assert (row["oldestWaitMs"], row["ttft"]["p99Ms"]) == (12500, 2000)
    assert tier_figures("t0", {"a/b": found, "a/c": found})["oldestWaitMs"] == 12500
    assert tenant_figures("a/x", {"a/b": found})["oldestWaitMs"] == 12500
    assert tier_figures("t1", {"a/b": found})["oldestWaitMs"] is None


def test_nothing_is_said_of_blocks_that_nobody_counts() -> None:
    found = figures((sidecar(TierStatus("t0")), sidecar(TierStatus("t0"))))
    (row,) = pool_status(found, ["t0"])["tiers"]
    assert not row.keys() & {"kv", "draftAcceptancePercent", "preemptions", "vftSkewFlagged"}


def test_drafts_are_of_the_window_and_preemptions_since_the_start() -> None:
    old = TierStatus(
        "t0", drafted_tokens_total=100, accepted_tokens_total=90, preemptions_total=3,
        vft_skew_flagged_total=2,
    )  # fmt: skip
    new = TierStatus(
        "t0", drafted_tokens_total=300, accepted_tokens_total=150, preemptions_total=4,
        vft_skew_flagged_total=2,
    )  # fmt: skip
    (row,) = pool_status(figures((sidecar(old), sidecar(new))), ["t0"])["tiers"]
    assert (row["draftAcceptancePercent"], row["preemptions"], row["vftSkewFlagged"]) == (30, 4, 2)


def test_a_tier_costs_and_keeps_engines_busy_over_all_pools() -> None:
    old = TierStatus("t0", requests_total={"completed": 10})
    new = TierStatus("t0", requests_total={"completed": 50}, engine_time_ms_total=36_000.0)
    cheap, dear, free = (figures((sidecar(old), sidecar(new))) for _ in range(3))
    cheap.pod_hour, dear.pod_hour = 1.0, 3.0
    row = tier_figures("t0", {"a/cheap": cheap, "a/dear": dear, "a/free": free})
    assert row["pricePer1000Calls"] == "0.5"  # 40 calls for 0.01, 40 for 0.03
    assert row["busyPercent"] == 60
    assert tier_figures("t9", {"a/free": free})["busyPercent"] is None


def test_who_is_refused_lately_is_named_with_the_limit() -> None:
    quiet = tenant("a/quiet", requests_total={"queue_full": 9})
    before = tenant(requests_total={"rate_limited": 5, "completed": 1})
    last = Refusal("rate_limited", 5.0, "rpm")
    now = {"rate_limited": 45, "throttled": 2, "client_closed": 7, "handed_back": 3}
    after = tenant(requests_total={"completed": 1, **now}, last_refusal=last)
    found = figures(
        (
            sidecar(TierStatus("t0"), tenants=(before, quiet)),
            sidecar(TierStatus("t0"), tenants=(after, quiet)),
        )
    )
    status = pool_status(found, ["t0"])
    assert status["refusedTenants"] == [
        {
            "name": "a/x",
            "tier": "t0",
            "refused": 42,
            "why": "40 rate_limited 2 throttled",
            "limit": "rpm",
        }
    ]
    told = tenant_figures("a/x", {"a/b": found})["lastRefusal"]
    assert told == {"reason": "rate_limited", "time": "1970-01-01T00:00:05Z", "limit": "rpm"}
    still = figures((sidecar(TierStatus("t0")), sidecar(TierStatus("t0"))))
    assert pool_status(still, ["t0"])["refusedTenants"] is None


@pytest.mark.parametrize(
    ("shared", "used"),
    [
        pytest.param((None, None), (5, 5), id="each pod counts for itself"),
        pytest.param((HERE, HERE), (3, 3), id="together"),
    ],
)
def test_a_limit_is_used_over_pods_and_pools(
    shared: tuple[SharedStateStatus | None, ...], used: tuple[int, int]
) -> None:
    """``used``: of one pool, and of two that name the same server, or of one of two that do not."""

    def pool(*requests: int) -> PoolFigures:
        told = [
            sidecar(
                TierStatus("t0"),
                tenants=(tenant(limits=(LimitUse("rpm", LimitWindow.MINUTE, 10, one),)),),
                shared_state=state,
            )
            for one, state in zip(requests, shared, strict=True)
        ]
        return figures(*((one, one) for one in told))

    found = pool(2, 3)
    one_pool, several = used
    (row,) = tenant_figures("a/x", {"a/b": found})["limits"]
    assert (row["requestsUsed"], row["usedPercent"]) == (one_pool, 10 * one_pool)
    other = pool(0, several)
    if shared[0]:
        found.shared_state = other.shared_state = "redis://here"
    both = tenant_figures("a/x", {"a/b": found, "a/c": other})
    assert both["limits"][0]["requestsUsed"] == (3 if shared[0] else 10)
    assert both["limitSummary"] == ("rpm 30%" if shared[0] else "rpm 100%")


def test_limits_show_the_fuller_of_requests_and_tokens() -> None:
    uses = (
        LimitUse("rpm", LimitWindow.MINUTE, 10, 2),
        LimitUse("monthly", LimitWindow.MONTH, None, 8, 1_000, 970),
    )
    now = sidecar(TierStatus("t0"), tenants=(tenant(limits=uses),))
    told = tenant_figures("a/x", {"a/b": figures((now, now))})
    assert told["limits"] == [
        {
            "name": "monthly",
            "per": "Month",
            "usedPercent": 97,
            "tokens": 1_000,
            "tokensUsed": 970,
        },
        {"name": "rpm", "per": "Minute", "usedPercent": 20, "requests": 10, "requestsUsed": 2},
    ]
    assert told["limitSummary"] == "monthly 97% rpm 20%"


def test_the_largest_pool_fits_and_the_api_takes_it() -> None:
    """64 busy tiers, 10,000 tenants that are all refused."""
    slow = Histogram(counts=tuple(range(100, 129)))
    refusals = {outcome.value: 10**6 for outcome in Outcome}
    name = "n" * 63 + "/" + "t" * 36
    tiers = [f"{'tier' * 9}-{i:03}" for i in range(64)]
    old, new = (
        sidecar(
            *(
                TierStatus(
                    tier, 10**6, 10**6, number * (i + 1), refusals, slow, slow, slow, slow,
                    slo=tuple(SloStatus(m, 10**6 + number, 10**6 - 7, number) for m in SloMetric),
                    oldest_wait_seconds=10**6, preemptions_total=9, kv_held_blocks=10**6,
                )
                for i, tier in enumerate(tiers)
            ),
            tenants=tuple(
                tenant(
                    f"{name}{i:04}", queued=1, requests_total={"throttled": number + i},
                    oldest_wait_seconds=10**6, ttft_seconds=slow if number else None,
                )
                for i in range(2_000)
            ),
            kv_pools=(KvPoolStatus("", 10**6, 10**6, 0),),
        )
        for number in (0, 10**6)
    )  # fmt: skip
    found = figures((old, new))
    objectives = tuple(SloObjective(metric, 1.5, 99.5) for metric in SloMetric)
    policies = [TierPolicy(tier, slo_objectives=objectives) for tier in tiers]
    found.promises = promises_of("a/b", policies, found.kept_since_start, None)
    status = pool_status(found, tiers)
    assert len(json.dumps(status)) < 16_000
    assert len(status["tiers"]) == 64
    assert set(status["tiers"][0]) == {"name", "queued", "running"}
    objective = status["tiers"][-1]["objectives"][0]
    assert (objective["refused"], objective["late"]) == (10**6, 0)
    assert objective["attainedPercent"] == "49.999"
    assert {"oldestWaitMs", "ttft"} <= status["tenants"][0].keys()
    api.ServingPoolStatus.model_validate(status)
    of_tier = without_nulls(tier_figures(tiers[-1], {"a/b": found}))
    assert len(json.dumps(of_tier)) < 4_000
    api.TenantTierStatus.model_validate(of_tier)
    of_tenant = without_nulls(tenant_figures(f"{name}0007", {"a/b": found}))
    api.TenantStatus.model_validate(of_tenant)


def test_a_tenant_of_a_hundred_pools_fits() -> None:
    """All names as long as they may be, all limits used, everything said that can be."""
    pools = [f"{'n' * 63}/{'p' * 37}{i:03}" for i in range(100)]
    urls = [f"https://{'p' * 37}{i:03}-{'g' * 22}.{'n' * 63}.svc:8000" for i in range(100)]
    said = tuple(
        Finding(kind, ConditionStatus.FALSE, Reason.KEY_CONFLICT, "m" * MESSAGE_LIMIT)
        for kind in (ConditionType.ACCEPTED, ConditionType.RESOLVED_REFS)
    )
    verdict = TenantVerdict("a/x", "a", 1, None, None, None, None, (), said)
    uses = tuple(
        LimitUse(f"{'l' * 60}{i:02}", LimitWindow.MONTH, 10**9, 10**9, 10**12, 10**12)
        for i in range(2 * MAX_RATE_LIMITS)
    )
    now = sidecar(TierStatus("t0"), tenants=(tenant(limits=uses),))
    status = tenant_state_status({}, verdict, pools, 1e9, urls) | without_nulls(
        tenant_figures("a/x", {"a/b": figures((now, now))})
    )
    api.TenantStatus.model_validate(status)
    assert len(status["pools"]) == len(status["addresses"]) == MAX_TENANT_POOLS
    assert len(json.dumps(status)) < 32_000
