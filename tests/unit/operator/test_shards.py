"""Shards: what is cut can be put together again, whole or not at all, and remembers rows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.custom_resources import Json, digest, pool
from tidegate_operator import api, shards
from tidegate_operator.render import policy_secrets

from tidegate.scheduling.contracts import KeySet, ModelPolicy, Policy, TenantPolicy, TierPolicy


def documents(count: int, generation: int = 7) -> tuple[Policy, KeySet]:
    tenants = tuple(TenantPolicy(f"acme/{i:05}", "t0") for i in range(count))
    policy = Policy(1, generation, "acme/chat", ModelPolicy("m"), (TierPolicy("t0"),), tenants)
    keys = {digest(f"{i}-{j}"): t.name for i, t in enumerate(tenants) for j in range(i % 3)}
    return policy, KeySet(1, generation, keys)


def secrets(policy: Policy, keys: KeySet) -> list[Json]:
    read = api.parse(api.ServingPool, pool())
    assert isinstance(read, api.ServingPool)
    return policy_secrets(read, shards.cut(policy, keys))


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(1_500, 6_000))
def test_cut_and_read_is_the_identity(count: int, size: int) -> None:
    policy, keys = documents(count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SHARD_BYTES", size)
        made = secrets(policy, keys)
        assert all(len(part) <= size for pair in shards.cut(policy, keys) for part in pair)
    found = shards.read(reversed(made))
    assert (found.policy, found.keys, found.generation) == (policy, keys, 7)


def test_ten_thousand_tenants_take_few_shards() -> None:
    cut = shards.cut(*documents(10_000))
    assert 1 < len(cut) <= 6
    assert all(len(part) <= shards.SHARD_BYTES for pair in cut for part in pair)


def test_more_tenants_than_all_shards_hold_are_refused() -> None:
    with pytest.raises(shards.TooManyTenants, match="16"):
        shards.cut(*documents(80_000))


def test_a_set_that_a_crash_left_mixed_yields_generation_and_rows_but_no_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shards, "SHARD_BYTES", 2_000)
    old, new = secrets(*documents(40)), secrets(*documents(40, generation=8))
    found = shards.read([new[0], *old[1:]])
    assert found.policy is None
    assert found.generation == 8
    assert len(found.rows) == 40
    assert set(found.tiers) == {"t0"}


@pytest.mark.parametrize("damage", [{}, {"policy.json": "!"}, {"policy.json": "e30="}])
def test_a_damaged_shard_counts_as_missing(damage: Json) -> None:
    (secret,) = secrets(*documents(1))
    assert shards.read([secret | {"data": damage}]) == shards.Previous()
