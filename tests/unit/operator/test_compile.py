"""Compiling a pool: what takes effect, what each bad input says, and that it is deterministic."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.custom_resources import Json, digest, key_secret, pool, tenant, tier
from tidegate_operator import api
from tidegate_operator.api.conditions import ConditionStatus, Reason
from tidegate_operator.compile import CompiledPool, compile_pool
from tidegate_operator.judge import Judgement, judge
from tidegate_operator.shards import Previous

from tidegate.scheduling.contracts import (
    POLICY_VERSION,
    BetweenTiers,
    Endpoint,
    KvPool,
    LimitWindow,
    Observability,
    OnExceed,
    Preemption,
    PrefillLimits,
    PromptLimit,
    RateLimit,
    SchedulingMode,
    SloMetric,
    SloObjective,
    Stop,
    TenantPolicy,
    TierPolicy,
)

NAMESPACES = {"acme": {"plan": "paid"}, "other": {"plan": "free"}}
OF_OTHERS = {"matchLabels": {"plan": "free"}}
LONG_KEY = "tg-" + "k" * 43


def isolated(name: str, *fields: Any, **others: Any) -> TenantPolicy:
    """The row of a Tenant that shares its prefix cache with nobody."""
    return TenantPolicy(
        name, *fields, cache_scope=f"tenant/tenant-{name.replace('/', '-')}", **others
    )


def judged(
    tiers: Sequence[Json], tenants: Sequence[Json], secrets: Sequence[Json] = ()
) -> Judgement:
    data = {(s["metadata"]["namespace"], s["metadata"]["name"]): s["data"] for s in secrets}
    return judge(tiers, tenants, NAMESPACES, data)


def compiled(
    judgement: Judgement,
    obj: Json | None = None,
    previous: Previous | None = None,
    *,
    may_share: bool = False,
    version: int = POLICY_VERSION,
) -> CompiledPool:
    read = api.parse(api.ServingPool, obj or pool())
    assert isinstance(read, api.ServingPool), read
    return compile_pool(
        read,
        judgement,
        previous or Previous(),
        may_share=may_share,
        now_seconds=1000.5,
        version=version,
    )


def as_previous(done: CompiledPool) -> Previous:
    assert done.policy is not None
    return Previous(
        done.policy.generation,
        done.policy,
        done.keys,
        {t.name: t for t in done.policy.tiers},
        {t.name: t for t in done.policy.tenants},
    )


def rows(done: CompiledPool) -> dict[str, TenantPolicy]:
    assert done.policy is not None
    return {row.name: row for row in done.policy.tenants}


def keys(done: CompiledPool) -> dict[str, str]:
    assert done.keys is not None
    return dict(done.keys.keys)


def finding(subject: Any, kind: str) -> tuple[str, str, str]:
    found = next(f for f in subject.findings if f.type == kind)
    return found.status, found.reason, found.message


def test_tiers_and_tenants_become_rows() -> None:
    done = compiled(
        judged(
            [
                tier("t1", priority=5, tenantOverrides={"maxWeight": 10}),
                tier(
                    "t0",
                    priority=9,
                    reservedPercent=20,
                    output={"max": 100},
                    queue={"maxWait": "1m30s"},
                    fairness={"unit": "Requests", "quantum": 1},
                    maxInFlight=3,
                ),
            ],
            [tenant("a"), tenant("b", "t1", weight=7, stop="Hold")],
        ),
        pool(
            engine={
                "image": "i",
                "args": ["--max_num_seqs", "32", "--allowed-media-domains", "a.example"],
            },
            schedulingMode=None,
        ),
    )
    assert done.policy is not None
    assert [t.name for t in done.policy.tiers] == ["t0", "t1"]
    first = done.policy.tiers[0]
    assert (first.reserved_percent, first.max_percent, first.max_in_flight) == (20, 100, 3)
    assert (first.output.default_tokens, first.output.max_tokens) == (100, 100)
    assert first.queue.max_wait_seconds == 90
    assert first.fairness.quantum == 1
    assert rows(done)["acme/b"] == isolated("acme/b", "t1", 7, Stop.HOLD)
    assert keys(done)[digest("demo-acme-a")] == "acme/a"
    assert done.policy.engine.max_num_seqs == 32
    assert done.policy.model.media_domains == ("a.example",)
    assert done.policy.scheduling_mode is SchedulingMode.TIDEGATE
    assert done.policy.generation == 1000
    assert finding(done, "Accepted")[0] == "True"


def test_the_pool_overrides_its_tiers_and_serves_only_those_it_lists() -> None:
    judgement = judged(
        [tier("t0", reservedPercent=20), tier("t1")], [tenant("a"), tenant("b", "t1")]
    )
    done = compiled(judgement, pool(tiers=[{"name": "t0", "reservedPercent": 0, "maxPercent": 50}]))
    assert done.policy is not None
    (only,) = done.policy.tiers
    assert (only.reserved_percent, only.max_percent) == (0, 50)
    assert set(rows(done)) == {"acme/a"}
    assert set(keys(done).values()) == {"acme/a"}


MINUTE = {"name": "m", "tokens": 100, "requests": 10, "per": "Minute"}


def test_limits_and_promises_become_the_tiers_own() -> None:
    full = tier(
        "t0",
        weight=3,
        fairness={"unit": "EngineTime"},
        promptLimit={"maxTokens": 100, "maxPrefillTime": "2s", "onExceed": "BestEffort"},
        rateLimits=[
            {"name": "b", "requests": 5, "per": "Month", "endpoints": ["Completions", "Chat"]},
            {"name": "a", "tokens": 9, "per": "Hour", "models": ["y", "x"]},
        ],
        preemption={"evictable": True, "recomputeBackoff": {"max": "2s"}, "maxPerRequest": 0},
        slo={"objectives": [{"metric": "TimeToFirstToken", "target": "800ms", "ratio": "99.5"}]},
    )
    done = compiled(
        judged([full], [tenant("a", models=["z", "x"])]),
        pool(
            betweenTiers="Weighted",
            schedulingMode="Shadow",
            kvPools=[{"name": "k", "tiers": ["t0"], "percent": 70, "lendablePercent": 20}],
            prefill={"tokensPerStep": 512, "chunkTokens": 128},
        ),
    )
    assert done.policy is not None
    (made,) = done.policy.tiers
    assert made.weight == 3
    assert (made.fairness.unit, made.fairness.quantum) == ("EngineTime", None)
    assert made.prompt_limit == PromptLimit(100, 2.0, OnExceed.BEST_EFFORT)
    assert made.rate_limits == (
        RateLimit("a", LimitWindow.HOUR, None, 9, (), ("x", "y")),
        RateLimit("b", LimitWindow.MONTH, 5, None, (Endpoint.CHAT, Endpoint.COMPLETIONS)),
    )
    assert made.preemption == Preemption(True, 0.010, 2.0, 0)
    assert made.slo_objectives == (
        SloObjective(SloMetric.TIME_TO_FIRST_TOKEN, 0.8, 99.5, 720 * 3600.0),
    )
    assert rows(done)["acme/a"].models == ("x", "z")
    assert done.policy.kv_pools == (KvPool("k", ("t0",), 70, 20, None),)
    assert done.policy.prefill == PrefillLimits(30, 512, 128)
    assert done.policy.between_tiers is BetweenTiers.WEIGHTED
    assert done.policy.scheduling_mode is SchedulingMode.SHADOW


def test_what_nothing_is_said_of_is_what_the_contract_says() -> None:
    done = compiled(judged([tier("t0", preemption={}, slo={}, rateLimits=[])], [tenant("a")]))
    assert done.policy is not None
    (made,) = done.policy.tiers
    assert made == TierPolicy("t0")
    assert (done.policy.kv_pools, done.policy.prefill) == ((), PrefillLimits())


def test_the_pool_overrides_promises_and_prompt_limits() -> None:
    promised = {"objectives": [{"metric": "EndToEnd", "target": "9s"}]}
    judgement = judged([tier("t0", slo=promised, promptLimit={"maxTokens": 10})], [tenant("a")])
    overrides = {"name": "t0", "slo": {}, "promptLimit": {"maxTokens": 20}}
    for obj, seconds, most in (
        (pool(), 9.0, 10),
        (pool(tiers=[overrides]), None, 20),
    ):
        done = compiled(judgement, obj)
        assert done.policy is not None
        (made,) = done.policy.tiers
        assert made.slo_seconds(SloMetric.END_TO_END) == seconds
        assert made.prompt_limit is not None
        assert made.prompt_limit.max_tokens == most


def test_kv_pools_are_over_the_tiers_that_are_there() -> None:
    obj = pool(
        tiers=[{"name": "t0"}, {"name": "t9"}, {"name": "t8"}],
        kvPools=[
            {"name": "b", "tiers": ["t9", "t0"], "percent": 40},
            {"name": "a", "tiers": ["t8"], "percent": 60},
        ],
    )
    done = compiled(judged([tier("t0")], [tenant("a")]), obj)
    assert done.policy is not None
    assert done.policy.kv_pools == (KvPool("b", ("t0",), 40),)
    assert finding(done, "ResolvedRefs")[2].count("t9") == 1  # it is told of in spec.tiers


def test_tiers_that_a_group_does_not_draft_for_verify_no_draft() -> None:
    judgement = judged([tier("t0"), tier("t3")], [tenant("a")])
    draft = {"method": "Ngram", "tokens": 4}
    groups = [{"name": "all", "tiers": ["t0", "t3"], "draft": draft, "noDraftTiers": ["t3"]}]
    done = compiled(judgement, pool(engineGroups=groups))
    assert done.policy is not None
    assert {t.name: t.draft_tokens for t in done.policy.tiers} == {"t0": None, "t3": 0}


@pytest.mark.parametrize(
    ("own", "allowed"),
    [
        (MINUTE, True),
        (MINUTE | {"tokens": 99}, True),
        (MINUTE | {"tokens": 101}, False),
        (MINUTE | {"requests": 11}, False),
        (MINUTE | {"per": "Hour"}, False),
        ({"name": "m", "tokens": 100, "per": "Minute"}, False),
        (MINUTE | {"endpoints": ["Chat"]}, True),
        (MINUTE | {"endpoints": ["Chat", "Embeddings"]}, True),
        (MINUTE | {"endpoints": ["Embeddings"]}, False),
        (MINUTE | {"models": ["x"]}, False),
        ({"name": "other", "tokens": 10_000, "per": "Day"}, True),
    ],
)
def test_a_tenant_may_tighten_its_limits_and_no_more(own: Json, allowed: bool) -> None:
    limited = MINUTE | {"endpoints": ["Chat"]}
    for mode, expected in (("Tighten", allowed), (None, allowed), ("Any", True)):
        overrides = {"tenantOverrides": {"rateLimits": mode} if mode else {}}
        judgement = judged(
            [tier("t0", rateLimits=[limited], **overrides)], [tenant("a", rateLimits=[own])]
        )
        status, reason, text = finding(judgement.tenants["acme/a"], "Accepted")
        assert (status == "True") is expected, mode
        if expected:
            (limit,) = rows(compiled(judgement))["acme/a"].rate_limits
            assert limit.name == own["name"]
        else:
            assert reason == Reason.RATE_LIMIT_NOT_ALLOWED
            assert "spec.rateLimits[m]" in text


BAD_TENANTS = [
    pytest.param(tenant("x", "t9"), "ResolvedRefs", Reason.TIER_NOT_FOUND, "t9", id="unknown-tier"),
    pytest.param(
        tenant("x", "closed"), "Accepted", Reason.TIER_NOT_ALLOWED, "acme", id="tier-not-allowed"
    ),
    pytest.param(
        tenant("x", weight=2), "Accepted", Reason.WEIGHT_NOT_ALLOWED, "maxWeight", id="weight"
    ),
    pytest.param(
        tenant("x", apiKeys=[{"name": "k", "secretRef": {"name": "gone", "key": "k"}}]),
        "ResolvedRefs",
        Reason.SECRET_NOT_FOUND,
        "kubectl -n acme label secret gone tidegate.io/api-keys=true",
        id="secret-missing-or-unlabelled",
    ),
    pytest.param(
        tenant("x", apiKeys=[{"name": "k", "secretRef": {"name": "short", "key": "other"}}]),
        "ResolvedRefs",
        Reason.SECRET_KEY_MISSING,
        "other",
        id="secret-without-the-key",
    ),
    pytest.param(
        tenant("x", apiKeys=[{"name": "k", "secretRef": {"name": "short", "key": "k"}}]),
        "Accepted",
        Reason.KEY_TOO_SHORT,
        "256 bits",
        id="key-too-short",
    ),
    pytest.param(
        tenant("x", apiKeys=[{"name": "k", "secretRef": {"name": "short", "key": "hex"}}]),
        "Accepted",
        Reason.KEY_TOO_SHORT,
        "256 bits",
        id="hexadecimal-key-too-short",
    ),
    pytest.param(
        tenant("x", apiKeys=[{"name": "k", "secretRef": {"name": "short", "key": "blank"}}]),
        "Accepted",
        Reason.INVALID,
        "header",
        id="key-with-blanks",
    ),
    pytest.param(tenant("x", apiKeys=[]), "Accepted", Reason.NO_KEYS, "apiKeys", id="no-keys"),
    pytest.param(
        tenant("x", weight="heavy"), "Accepted", Reason.INVALID, "spec.weight", id="unreadable"
    ),
    pytest.param(
        tenant(
            "x",
            created="2026-02-01T00:00:00Z",
            apiKeys=[{"name": "k", "sha256": digest("demo-acme-good")}],
        ),
        "Accepted",
        Reason.KEY_CONFLICT,
        "spec.apiKeys[k]",
        id="key-of-an-older-tenant",
    ),
]


@pytest.mark.parametrize(("bad", "kind", "reason", "message"), BAD_TENANTS)
def test_a_bad_tenant_says_why_and_no_other_is_touched(
    bad: Json, kind: str, reason: Reason, message: str
) -> None:
    secret = key_secret("short", {"k": "short", "hex": "a" * 63, "blank": "k" * 40 + " " * 9 + "k"})
    judgement = judged(
        [tier("t0"), tier("closed", allowedNamespaces={"matchLabels": {"plan": "free"}})],
        [bad, tenant("good")],
        [secret],
    )
    status, found, text = finding(judgement.tenants["acme/x"], kind)
    assert (status, found) == (ConditionStatus.FALSE, reason)
    assert message in text
    assert not [
        value
        for f in judgement.tenants["acme/x"].findings
        for value in ("short-key", digest("demo-acme-good"), "k" * 40)
        if value in f.message
    ]
    good = judgement.tenants["acme/good"]
    assert {f.status for f in good.findings} == {ConditionStatus.TRUE}
    done = compiled(judgement)
    assert keys(done) == {digest("demo-acme-good"): "acme/good"}


def test_a_key_in_a_secret_is_hashed_without_its_line_break() -> None:
    ref = {"name": "k", "secretRef": {"name": "s", "key": "k"}}
    judgement = judged(
        [tier("t0")], [tenant("a", apiKeys=[ref])], [key_secret("s", {"k": LONG_KEY + "\n"})]
    )
    assert keys(compiled(judgement)) == {digest(LONG_KEY): "acme/a"}


@pytest.mark.parametrize("order", [0, 1])
def test_of_two_tenants_with_one_key_the_older_keeps_it_in_any_order_of_listing(order: int) -> None:
    shared = [{"name": "k", "sha256": digest("demo-shared")}]
    both = [
        tenant("young", created="2026-03-01T00:00:00Z", apiKeys=shared),
        tenant("old", created="2026-01-01T00:00:00Z", apiKeys=shared),
    ]
    judgement = judged([tier("t0")], both if order else both[::-1])
    assert keys(compiled(judgement)) == {digest("demo-shared"): "acme/old"}
    assert finding(judgement.tenants["acme/young"], "Accepted")[1] == Reason.KEY_CONFLICT
    assert finding(judgement.tenants["acme/old"], "Accepted")[0] == ConditionStatus.TRUE


LAST_GOOD = [
    pytest.param({"tierRef": {"name": "t9"}}, {}, isolated("acme/a", "t0", 5), id="unknown"),
    pytest.param({"weight": 900}, {}, isolated("acme/a", "t0", 5), id="weight"),
    pytest.param(
        {"weight": 5},
        {"tenantOverrides": {"maxWeight": 3}},
        isolated("acme/a", "t0", 3),
        id="max-weight-lowered",
    ),
    pytest.param(
        {"weight": 900, "stop": "HoldAndDrain"},
        {},
        isolated("acme/a", "t0", 5, Stop.HOLD_AND_DRAIN),
        id="stopped-while-invalid",
    ),
    pytest.param(
        {"weight": 5}, {"allowedNamespaces": {"matchLabels": {"x": "y"}}}, None, id="tier-revoked"
    ),
    pytest.param(
        {"weight": 900},
        {"allowedNamespaces": {"matchLabels": {"x": "y"}}},
        None,
        id="tier-revoked-while-invalid",
    ),
    pytest.param(
        {"rateLimits": [MINUTE | {"tokens": 900}]},
        {"rateLimits": [MINUTE]},
        isolated("acme/a", "t0", 5),
        id="looser-limits",
    ),
    pytest.param(
        {"weight": 900, "models": ["x"]},
        {},
        isolated("acme/a", "t0", 5, models=("x",)),
        id="models-narrowed-while-invalid",
    ),
]


@pytest.mark.parametrize(("change", "tier_change", "row"), LAST_GOOD)
def test_an_invalid_tenant_keeps_its_last_good_row_but_nothing_that_was_taken_away(
    change: Json, tier_change: Json, row: TenantPolicy | None
) -> None:
    allowed = {"tenantOverrides": {"maxWeight": 10}}
    before = compiled(judged([tier("t0", **allowed)], [tenant("a", weight=5), tenant("b")]))
    judgement = judged(
        [tier("t0", **(allowed | tier_change))], [tenant("a", **({"weight": 5} | change))]
    )
    after = compiled(judgement, previous=as_previous(before))
    assert rows(after).get("acme/a") == row
    assert "acme/b" not in rows(after)


def test_a_limit_that_was_loosened_goes_with_the_right_to_it() -> None:
    loose, own = MINUTE | {"tokens": 900}, {"name": "d", "tokens": 5, "per": "Day"}
    before = compiled(
        judged(
            [tier("t0", rateLimits=[MINUTE], tenantOverrides={"rateLimits": "Any"})],
            [tenant("a", rateLimits=[loose, own])],
        )
    )
    assert [limit.name for limit in rows(before)["acme/a"].rate_limits] == ["d", "m"]
    judgement = judged([tier("t0", rateLimits=[MINUTE])], [tenant("a", rateLimits=[loose, own])])
    after = compiled(judgement, previous=as_previous(before))
    assert [limit.name for limit in rows(after)["acme/a"].rate_limits] == ["d"]
    assert finding(judgement.tenants["acme/a"], "Accepted")[1] == Reason.RATE_LIMIT_NOT_ALLOWED


def test_a_removed_key_is_gone_even_of_an_invalid_tenant() -> None:
    before = compiled(judged([tier("t0")], [tenant("a")]))
    after = compiled(
        judged([tier("t0")], [tenant("a", weight=9, apiKeys=[])]), previous=as_previous(before)
    )
    assert set(rows(after)) == {"acme/a"}
    assert keys(after) == {}


def test_a_deleted_tier_takes_its_tenants_along() -> None:
    tiers = [tier("t0"), tier("t1")]
    before = compiled(judged(tiers, [tenant("a"), tenant("b", "t1")]))
    after = compiled(
        judged(tiers[1:], [tenant("a"), tenant("b", "t1")]), previous=as_previous(before)
    )
    assert set(rows(after)) == {"acme/b"}


BAD_POOLS = [
    pytest.param(
        [tier("t0")],
        pool(tiers=[{"name": "t0"}, {"name": "t9"}]),
        "ResolvedRefs",
        Reason.TIER_NOT_FOUND,
        "spec.tiers[t9]",
        id="unknown-tier",
    ),
    pytest.param([], pool(), "Accepted", Reason.NO_TIERS, "TenantTier", id="no-tiers"),
    pytest.param(
        [tier("t0", allowedNamespaces=OF_OTHERS)],
        pool(),
        "Accepted",
        Reason.NO_TIERS,
        "no TenantTier select a namespace whose Tenants it serves (acme)",
        id="tiers-of-others",
    ),
    pytest.param(
        [tier("t0", reservedPercent=60), tier("t1", reservedPercent=60)],
        pool(),
        "Accepted",
        Reason.OVERCOMMITTED,
        "120",
        id="reservations-above-100",
    ),
    pytest.param(
        [tier("t0", maxPercent=30)],
        pool(tiers=[{"name": "t0", "reservedPercent": 40}]),
        "Accepted",
        Reason.INVALID,
        "spec.tiers[t0]",
        id="reservation-above-the-limit",
    ),
    pytest.param(
        [tier("t0")],
        pool(tenants={"namespaceSelector": {}}),
        "Accepted",
        Reason.NAMESPACE_NOT_ALLOWED,
        "--shared-pool-namespaces",
        id="other-namespaces",
    ),
    pytest.param(
        [tier("t0")],
        pool(kvPools=[{"name": "k", "tiers": ["t0", "t9"], "percent": 50}]),
        "ResolvedRefs",
        Reason.TIER_NOT_FOUND,
        "spec.kvPools[k]: there is no TenantTier t9",
        id="kv-of-an-unknown-tier",
    ),
    pytest.param(
        [tier("t0")],
        pool(engineGroups=[{"name": "g", "tiers": ["t0", "t9"]}]),
        "ResolvedRefs",
        Reason.TIER_NOT_FOUND,
        "spec.engineGroups[g]: there is no TenantTier t9",
        id="group-of-an-unknown-tier",
    ),
    pytest.param(
        [tier(f"t{i}") for i in range(65)], pool(), "Accepted", Reason.INVALID, "65", id="too-many"
    ),
]


@pytest.mark.parametrize(("tiers", "obj", "kind", "reason", "message"), BAD_POOLS)
def test_a_bad_pool_says_why(
    tiers: list[Json], obj: Json, kind: str, reason: Reason, message: str
) -> None:
    status, found, text = finding(compiled(judged(tiers, [tenant("a")]), obj), kind)
    assert (status, found) == (ConditionStatus.FALSE, reason)
    assert message in text


def test_a_pool_with_an_unknown_tier_goes_on_with_the_others() -> None:
    obj = pool(tiers=[{"name": "t0"}, {"name": "t9"}])
    done = compiled(judged([tier("t0")], [tenant("a")]), obj)
    assert set(rows(done)) == {"acme/a"}
    assert finding(done, "Accepted")[0] == "True"


def test_a_pool_without_tenants_says_that_nobody_can_call_it() -> None:
    done = compiled(judged([tier("t0")], [tenant("a", namespace="other")]))
    assert finding(done, "Accepted")[:2] == (ConditionStatus.TRUE, Reason.NO_TENANTS)
    assert done.policy is not None


def test_a_tier_that_nobody_here_may_claim_counts_nowhere() -> None:
    """Else the tiers of another team overcommit every pool that lists none."""
    tiers = [
        tier("t0", reservedPercent=60, allowedNamespaces={"matchLabels": {"plan": "paid"}}),
        tier("theirs", reservedPercent=60, allowedNamespaces=OF_OTHERS),
    ]
    judgement = judged(tiers, [tenant("a"), tenant("b", "theirs", namespace="other")])
    done = compiled(judgement)
    assert (done.tier_names, set(rows(done))) == (("t0",), {"acme/a"})
    everybody = pool(tenants={"namespaceSelector": {}})
    assert compiled(judgement, everybody).tier_names == ("t0",), "not allowed to serve others"
    both = compiled(judgement, everybody, may_share=True)
    assert finding(both, "Accepted")[:2] == ("False", Reason.OVERCOMMITTED)
    listed = compiled(judgement, pool(tiers=[{"name": "theirs"}]))
    assert (listed.tier_names, rows(listed)) == (("theirs",), {}), "as its spec says"


def test_a_tier_that_becomes_unreadable_stays_as_it_was() -> None:
    before = compiled(judged([tier("t0", priority=3)], [tenant("a")]))
    unreadable = judged([tier("t0", priority="high"), tier("t1")], [tenant("a")])
    after = compiled(unreadable, previous=as_previous(before))
    assert (after.tier_names, set(rows(after))) == (("t0", "t1"), {"acme/a"})


WITHOUT_TIERS = [
    pytest.param([], pool(), id="deleted"),
    pytest.param([tier("t0", allowedNamespaces=OF_OTHERS)], pool(), id="for-others"),
    pytest.param(
        [tier("t0", allowedNamespaces={"matchLabels": {"plan": "paid"}})],
        pool(tenants={"namespaceSelector": {"matchLabels": {"plan": "free"}}}),
        id="serves-others",
    ),
]


@pytest.mark.parametrize(("tiers", "obj"), WITHOUT_TIERS)
def test_a_pool_that_loses_its_last_tier_serves_nobody_any_more(
    tiers: list[Json], obj: Json
) -> None:
    before = compiled(judged([tier("t0")], [tenant("a")]))
    after = compiled(judged(tiers, [tenant("a")]), obj, as_previous(before), may_share=True)
    assert finding(after, "Accepted")[:2] == ("False", Reason.NO_TIERS)
    assert (rows(after), keys(after)) == ({}, {})
    assert after.policy is not None
    assert after.policy.generation == 1001


def test_overcommitted_tiers_leave_the_last_good_ones_in_force() -> None:
    before = compiled(judged([tier("t0", reservedPercent=60)], [tenant("a")]))
    after = compiled(
        judged(
            [tier("t0", reservedPercent=60), tier("t1", reservedPercent=60)],
            [tenant("a"), tenant("b", "t1")],
        ),
        previous=as_previous(before),
    )
    assert finding(after, "Accepted")[0] == "False"
    assert after.tier_names == ("t0",)
    assert set(rows(after)) == {"acme/a"}


@pytest.mark.parametrize(
    ("may_share", "selector", "served"),
    [
        (False, None, {"acme/a"}),
        (True, None, {"acme/a"}),
        (True, {}, {"acme/a", "other/b"}),
        (True, {"matchLabels": {"plan": "free"}}, {"other/b"}),
        (False, {}, {"acme/a"}),
    ],
)
def test_whose_tenants_are_served(may_share: bool, selector: Json | None, served: set[str]) -> None:
    judgement = judged([tier("t0")], [tenant("a"), tenant("b", namespace="other")])
    obj = pool() if selector is None else pool(tenants={"namespaceSelector": selector})
    assert set(rows(compiled(judgement, obj, may_share=may_share))) == served


def test_equal_content_keeps_the_generation_and_other_content_raises_it_by_one() -> None:
    judgement = judged([tier("t0")], [tenant("a")])
    first = compiled(judgement)
    again = compiled(judgement, previous=as_previous(first))
    assert (again.policy, again.keys) == (first.policy, first.keys)
    changed = compiled(
        judged([tier("t0")], [tenant("a", stop="Hold")]), previous=as_previous(first)
    )
    assert changed.policy is not None
    assert changed.policy.generation == 1001
    incomplete = replace(as_previous(first), policy=None, keys=None)
    rewritten = compiled(judgement, previous=incomplete)
    assert rewritten.policy is not None
    assert rewritten.policy.generation == 1001


names = st.sampled_from("abcdef")


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Json], list[Json]]:
    tiers = [
        tier(f"t{i}", priority=draw(st.integers(-5, 5)), reservedPercent=draw(st.integers(0, 60)))
        for i in range(draw(st.integers(0, 3)))
    ]
    tenants = [
        tenant(
            name,
            f"t{draw(st.integers(0, 3))}",
            created=f"2026-01-0{draw(st.integers(1, 3))}T00:00:00Z",
            weight=draw(st.integers(1, 2)),
            apiKeys=[{"name": "k", "sha256": digest(draw(names))}],
        )
        for name in draw(st.sets(names, max_size=6))
    ]
    return tiers, tenants


@settings(deadline=None)  # of a machine that does much else
@given(clusters(), clusters(), st.randoms(use_true_random=False))
def test_compiling_is_deterministic_and_idempotent(
    before: tuple[list[Json], list[Json]],
    after: tuple[list[Json], list[Json]],
    shuffle: random.Random,
) -> None:
    first = compiled(judged(*before))
    previous = as_previous(first) if first.policy else Previous()
    done = compiled(judged(*after), previous=previous)
    mixed = [list(objects) for objects in after]
    for objects in mixed:
        shuffle.shuffle(objects)
    assert compiled(judged(*mixed), previous=previous) == done
    if done.policy is not None:
        again = compiled(judged(*after), previous=as_previous(done))
        assert (again.policy, again.keys) == (done.policy, done.keys)
        assert set(keys(done).values()) <= set(rows(done))
        assert sum(t.reserved_percent for t in done.policy.tiers) <= 100


def test_sidecars_of_the_version_before_get_what_they_know_and_the_rest_is_named() -> None:
    limits = [
        {"name": "new", "requests": 5, "per": "Day", "endpoints": ["Responses"]},
        {"name": "old", "requests": 5, "per": "Day", "endpoints": ["Chat", "Responses"]},
    ]
    judgement = judged([tier("t0", rateLimits=limits)], [tenant("a")])
    newest = compiled(judgement)
    before = compiled(judgement, previous=as_previous(newest), version=1)
    assert newest.policy is not None
    assert before.policy is not None
    assert (newest.policy.version, before.policy.version) == (POLICY_VERSION, 1)
    assert [limit.name for limit in before.policy.tiers[0].rate_limits] == ["old"]
    assert before.policy.generation == newest.policy.generation + 1
    again = compiled(judgement, previous=as_previous(before), version=1)
    assert again.policy == before.policy
    taken = compiled(judgement, previous=as_previous(before), version=POLICY_VERSION)
    assert taken.policy is not None
    assert taken.policy.tiers == newest.policy.tiers


def test_how_often_a_stream_that_waits_is_kept_alive() -> None:
    judgement = judged([tier("t0")], [tenant("a")])
    for service, seconds in ((None, None), ({}, None), ({"streamKeepAlive": "1m30s"}, 90.0)):
        policy = compiled(
            judgement, pool(**({} if service is None else {"service": service}))
        ).policy
        assert policy is not None
        assert policy.stream_keep_alive_seconds == seconds
    before = compiled(judgement, pool(service={"streamKeepAlive": "15s"}), version=1)
    assert "stream_keep_alive_seconds" in before.lost


def test_a_prefix_cache_is_ones_own_or_a_groups_of_ones_namespace() -> None:
    tenants = [
        tenant("alone"),
        tenant("isolated", prefixCache="Isolated"),
        tenant("one", prefixCache="apps"),
        tenant("two", prefixCache="apps"),
        tenant("far", namespace="other", prefixCache="apps"),
    ]
    everywhere = pool(tenants={"namespaceSelector": {}})
    done = rows(compiled(judged([tier("t0")], tenants), everywhere, may_share=True))
    scopes = {name: row.cache_scope for name, row in done.items()}
    assert scopes["acme/one"] == scopes["acme/two"] == "group/acme/apps"
    assert scopes["other/far"] == "group/other/apps"
    assert scopes["acme/alone"] == "tenant/tenant-acme-alone"
    assert scopes["acme/isolated"] == "tenant/tenant-acme-isolated"


def test_a_tenant_leaves_its_group_while_its_claim_is_invalid() -> None:
    before = judged([tier("t0")], [tenant("a", prefixCache="apps")])
    first = compiled(before)
    after = judged([tier("t0")], [tenant("a", weight=900)])
    assert rows(compiled(after, previous=as_previous(first)))["acme/a"] == isolated("acme/a", "t0")


def test_spans_go_where_the_pool_says() -> None:
    judgement = judged([tier("t0")], [tenant("a")])
    assert compiled(judgement).policy.observability == Observability()  # type: ignore[union-attr]
    for percent, told in ((None, 100), (0, 0), (5, 5)):
        otlp: Json = {"endpoint": "http://collector:4318/v1/traces"}
        if percent is not None:
            otlp["samplePercent"] = percent
        policy = compiled(judgement, pool(observability={"otlp": otlp})).policy
        assert policy is not None
        assert policy.observability == Observability("http://collector:4318/v1/traces", told)
