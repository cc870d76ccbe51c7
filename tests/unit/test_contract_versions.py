"""A policy as the sidecars of the version before read it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.scheduling.contracts import (
    POLICY_VERSION,
    Endpoint,
    LimitWindow,
    ModelPolicy,
    Policy,
    RateLimit,
    TenantPolicy,
    TierPolicy,
    as_of,
    encode,
    loads,
)
from tidegate.scheduling.contracts.codec import ContractError, decode, dumps

TIER = TierPolicy("t0", priority=5, reserved_percent=20)
POLICY = Policy(
    POLICY_VERSION,
    7,
    "ns/pool",
    ModelPolicy("m"),
    tiers=(TIER,),
    tenants=(TenantPolicy("ns/a", "t0", 3, models=("m",)),),
)


def limit(*endpoints: Endpoint) -> RateLimit:
    return RateLimit("d", LimitWindow.DAY, 5, endpoints=endpoints)


def test_the_newest_version_is_the_policy_itself() -> None:
    policy = replace(POLICY, tiers=(replace(TIER, draft_tokens=0),))
    assert as_of(policy, POLICY_VERSION) == (policy, ())
    assert loads(Policy, dumps(policy)) == policy


def test_what_says_nothing_new_is_all_there_and_names_nothing_new() -> None:
    before, lost = as_of(POLICY, 1)
    assert lost == ()
    assert before == replace(POLICY, version=1)
    assert "draft_tokens" not in dumps(before)
    assert "draft_tokens" not in dumps(POLICY)


def test_what_the_version_before_does_not_know_is_left_out_and_named() -> None:
    policy = replace(POLICY, tiers=(replace(TIER, draft_tokens=0), replace(TIER, name="t1")))
    before, lost = as_of(policy, 1)
    assert lost == ("tiers[].draft_tokens",)
    assert "draft_tokens" not in dumps(before)
    assert before.tiers[0] == TIER


@pytest.mark.parametrize(
    ("endpoints", "kept"),
    [
        ((), ()),
        ((Endpoint.CHAT,), (Endpoint.CHAT,)),
        ((Endpoint.CHAT, Endpoint.RESPONSES), (Endpoint.CHAT,)),
        ((Endpoint.RESPONSES,), None),
    ],
)
def test_limits_count_what_is_served_there(
    endpoints: tuple[Endpoint, ...], kept: tuple[Endpoint, ...] | None
) -> None:
    """A limit of endpoints that do not exist there must not come to count all of them."""
    before, _ = as_of(replace(POLICY, tiers=(replace(TIER, rate_limits=(limit(*endpoints),)),)), 1)
    assert before.tiers[0].rate_limits == (() if kept is None else (limit(*kept),))


def test_a_reader_takes_its_own_version_and_the_one_before_and_no_other() -> None:
    document = encode(POLICY)
    assert decode(Policy, document | {"version": 1}).version == 1
    for version in (0, POLICY_VERSION + 1):
        with pytest.raises(ContractError, match="version"):
            decode(Policy, document | {"version": version})
