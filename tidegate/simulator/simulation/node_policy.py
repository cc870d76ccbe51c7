"""The policy of source 000's node, and the systems that serve it: one engine or several.

Terms from source 000: T0 and T1 share a protected KV pool of 70%, T2 has
20% and T3 10%, both evictable; prefills get 30% of a step. Reservations are this project's choice:
T0 30%, T1 20%, T2 10%, T3 10% of the engine's service.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tidegate.scheduling.contracts import (
    POLICY_VERSION,
    EngineLimits,
    KvPool,
    ModelPolicy,
    Policy,
    Preemption,
    PrefillLimits,
    QueueLimits,
    TenantPolicy,
    TierPolicy,
)
from tidegate.simulator.engine_model import CALIBRATIONS, Calibration
from tidegate.simulator.simulation.plugin import PluginOptions
from tidegate.simulator.simulation.system import EngineGroup, Scheduling, System
from tidegate.workload.clients.client import Workload

TP8 = CALIBRATIONS["h100_70b_tp8"]
TP4 = CALIBRATIONS["h100_70b_tp4"]

BLOCK_SIZE = 64
"""KV block of the node's engines, one of vLLM's sizes. With its default of 16 a run takes 1.4 times
as long and T0's prompts hit 24 tokens more of 10,000."""

_RESERVED_PERCENT = {"t0": 30, "t1": 20, "t2": 10, "t3": 10}
_PRIORITY = {"t0": 30, "t1": 20, "t2": 10, "t3": 0}
_EVICTABLE = ("t2", "t3")
_POOLS = (("conversation", ("t0", "t1"), 70), ("batch", ("t2",), 20), ("free", ("t3",), 10))
_MOST_WAIT_SECONDS = 3_600.0
"""Nothing expires in a figure: who waits for ever must show as never started."""


def node_policy(
    workload: Workload,
    *,
    prefill: PrefillLimits | None = None,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 8_192,
) -> Policy:
    """Source 000's terms for the tiers and tenants of a workload."""
    present = set(workload.tiers)
    pools = tuple(
        KvPool(name=name, tiers=kept, percent=percent)
        for name, tiers, percent in _POOLS
        if (kept := tuple(tier for tier in tiers if tier in present))
    )
    return Policy(
        version=POLICY_VERSION,
        generation=1,
        pool="node/pool",
        model=ModelPolicy(name="llama-70b"),
        tiers=tuple(
            TierPolicy(
                name=tier,
                priority=_PRIORITY[tier],
                reserved_percent=_RESERVED_PERCENT[tier],
                queue=QueueLimits(max_requests=100_000, max_wait_seconds=_MOST_WAIT_SECONDS),
                preemption=Preemption(evictable=tier in _EVICTABLE),
            )
            for tier in workload.tiers
        ),
        tenants=tuple(
            TenantPolicy(name=name, tier=tier) for name, tier in workload.tenants.items()
        ),
        engine=EngineLimits(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
        ),
        kv_pools=pools,
        prefill=prefill or PrefillLimits(),
    )


def one_engine(
    scheduling: Scheduling,
    policy: Policy,
    calibration: Calibration = TP8,
    *,
    name: str | None = None,
    max_num_batched_tokens: int = 8_192,
    plugin: PluginOptions | None = None,
    gpus: int = 8,
) -> System:
    """All tiers on one engine of all GPUs."""
    return System(
        name=name or str(scheduling),
        groups=(
            EngineGroup(
                name="node",
                calibration=calibration,
                gpus=gpus,
                policy=_budgeted(policy, max_num_batched_tokens),
                scheduling=scheduling,
                max_num_batched_tokens=max_num_batched_tokens,
                block_size=BLOCK_SIZE,
                plugin=plugin or PluginOptions(),
            ),
        ),
    )


def split(
    scheduling: Scheduling,
    policy: Policy,
    parts: Sequence[Iterable[str]],
    calibration: Calibration = TP4,
    gpus: int = 4,
) -> System:
    """Tiers apart on engines of ``gpus`` GPUs each."""
    groups = tuple(
        EngineGroup(
            name="+".join(sorted(tiers)),
            calibration=calibration,
            gpus=gpus,
            policy=_for_tiers(policy, frozenset(tiers)),
            scheduling=scheduling,
            tiers=frozenset(tiers),
            block_size=BLOCK_SIZE,
        )
        for tiers in parts
    )
    names = " | ".join(group.name for group in groups)
    return System(name=f"{scheduling}, {names}", groups=groups)


def splits_in_two(tiers: Sequence[str]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Every way to serve these tiers with two engines, none of them empty."""
    ways = []
    for bits in range(1, 2 ** (len(tiers) - 1)):
        other = tuple(tier for index, tier in enumerate(tiers[1:]) if bits >> index & 1)
        first = tuple(tier for tier in tiers if tier not in other)
        ways.append((first, other))
    return ways


def _budgeted(policy: Policy, max_num_batched_tokens: int) -> Policy:
    engine = replace(policy.engine, max_num_batched_tokens=max_num_batched_tokens)
    return replace(policy, engine=engine)


def _for_tiers(policy: Policy, tiers: frozenset[str]) -> Policy:
    """The same policy without the others' tiers; its KV pools share the whole engine."""
    pools = [
        replace(pool, tiers=kept)
        for pool in policy.kv_pools
        if (kept := tuple(tier for tier in pool.tiers if tier in tiers))
    ]
    total = sum(pool.percent for pool in pools)
    return replace(
        policy,
        tiers=tuple(tier for tier in policy.tiers if tier.name in tiers),
        tenants=tuple(tenant for tenant in policy.tenants if tenant.tier in tiers),
        kv_pools=tuple(replace(pool, percent=pool.percent * 100 // total) for pool in pools),
    )
