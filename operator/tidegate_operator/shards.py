"""Policy and keys of a pool cut into Secrets of bounded size, and read back from them.

A shard is one Secret with ``policy.json`` and ``keys.json`` of the same tenants, so that a tenant's
row and its keys arrive together. All shards of a set carry one generation and their count; sidecars
apply complete sets only. The set is also the operator's own memory: a restarted operator reads from
it the generation to continue from and the last good row of each tenant, and is lenient there (a set
that a crash left mixed still yields rows), while sidecars are strict.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.scheduling.contracts import (
    POLICY_VERSION,
    ContractError,
    KeySet,
    Policy,
    Shard,
    TenantPolicy,
    TierPolicy,
    dumps,
    loads,
    merge_shards,
)
from tidegate_operator.names import SHARDS

Json = dict[str, Any]

SHARD_BYTES = 256_000
"""Most bytes of one document of a shard."""
POLICY_FILE = "policy.json"
KEYS_FILE = "keys.json"


class TooManyTenants(Exception):
    """The tenants do not fit into all shards together."""


@dataclass(frozen=True, slots=True)
class Previous:
    """What a pool's sidecars were last given, as far as its Secrets tell."""

    generation: int = 0
    """The highest generation in any shard; 0: there is none."""
    policy: Policy | None = None
    """The whole policy; unset: the set is incomplete or unreadable."""
    keys: KeySet | None = None
    tiers: Mapping[str, TierPolicy] = field(default_factory=dict)
    rows: Mapping[str, TenantPolicy] = field(default_factory=dict)
    """Last good row by tenant."""
    version: int = POLICY_VERSION
    """Of the newest policy in any shard."""


def cut(policy: Policy, keys: KeySet) -> list[tuple[str, str]]:
    """The (policy, keys) documents of each shard; :class:`TooManyTenants` beyond the last."""
    digests: dict[str, list[str]] = {}
    for digest, name in keys.keys.items():
        digests.setdefault(name, []).append(digest)
    room = SHARD_BYTES - len(dumps(replace(policy, tenants=()))) - 64
    slices: list[list[TenantPolicy]] = [[]]
    policy_bytes = keys_bytes = 0
    for tenant in policy.tenants:
        row_bytes = len(dumps(tenant)) + 1
        row_keys_bytes = (len(tenant.name) + 70) * len(digests.get(tenant.name, ()))
        if policy_bytes + row_bytes > room or keys_bytes + row_keys_bytes > SHARD_BYTES - 256:
            slices.append([])
            policy_bytes = keys_bytes = 0
        slices[-1].append(tenant)
        policy_bytes += row_bytes
        keys_bytes += row_keys_bytes
    if len(slices) > SHARDS:
        raise TooManyTenants(
            f"{len(policy.tenants)} tenants need {len(slices)} shards of policy; "
            f"a pool has {SHARDS}"
        )
    return [
        _documents(policy, keys, rows, digests, index, len(slices))
        for index, rows in enumerate(slices)
    ]


def _documents(
    policy: Policy,
    keys: KeySet,
    rows: list[TenantPolicy],
    digests: Mapping[str, list[str]],
    index: int,
    count: int,
) -> tuple[str, str]:
    shard = Shard(index, count)
    # Shards after the first carry tenants only; the first names the tiers for all of them.
    part = replace(policy, tenants=(), shard=shard, tiers=policy.tiers if index == 0 else ())
    mine = {digest: row.name for row in rows for digest in digests.get(row.name, ())}
    return (
        dumps(replace(part, tenants=tuple(rows))),
        dumps(replace(keys, keys=mine, shard=shard)),
    )


def read(secrets: Iterable[Json]) -> Previous:
    """What the shard Secrets of a pool hold; unreadable ones count as missing."""
    policies: list[Policy] = []
    key_sets: list[KeySet] = []
    for secret in secrets:
        data = secret.get("data") or {}
        try:
            policies.append(loads(Policy, _decoded(data, POLICY_FILE)))
            key_sets.append(loads(KeySet, _decoded(data, KEYS_FILE)))
        except ContractError:
            continue
    generation = max((policy.generation for policy in policies), default=0)
    policies.sort(key=lambda policy: policy.generation)
    # One document carries all tiers: the newest such one is a combination that was valid.
    tiers: dict[str, TierPolicy] = {}
    for policy in policies:
        tiers = {tier.name: tier for tier in policy.tiers} or tiers
    rows = {row.name: row for policy in policies for row in policy.tenants}
    version = policies[-1].version if policies else POLICY_VERSION
    try:
        whole = merge_shards(policies)
    except ContractError:
        return Previous(generation, None, None, tiers, rows, version)
    keys = {digest: name for part in key_sets for digest, name in part.keys.items()}
    if len(key_sets) != len(policies) or {part.generation for part in key_sets} != {generation}:
        return Previous(generation, None, None, tiers, rows, version)
    key_set = KeySet(key_sets[0].version, generation, keys)
    return Previous(generation, whole, key_set, tiers, rows, version)


def _decoded(data: Mapping[str, str], name: str) -> bytes:
    try:
        return base64.b64decode(data.get(name, ""), validate=True)
    except binascii.Error:
        raise ContractError(f"{name} is not base64") from None
