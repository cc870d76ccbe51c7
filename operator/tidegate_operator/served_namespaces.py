"""The namespaces whose Tenants one pool serves, and so the tiers that count in it. Pure.

A TenantTier is cluster-wide, but only those whom its ``allowedNamespaces`` select may claim it. A
pool that lists no tiers serves those that somebody of its namespaces may claim, whether anyone does
yet or not: a tier of another team promises nothing here, and so takes nothing of the 100% that the
pool can promise.
"""

from __future__ import annotations

from collections.abc import Collection

from tidegate_operator.api.conditions import ConditionType, Reason
from tidegate_operator.api.serving_pool import PoolTier, ServingPool
from tidegate_operator.findings import Fault
from tidegate_operator.judge import Judgement


def served_namespaces(pool: ServingPool, judgement: Judgement, may_share: bool) -> frozenset[str]:
    """Those that there are; ``may_share`` lets the pool serve others than its own."""
    own = pool.metadata.namespace
    selector = pool.spec.tenants.namespace_selector if pool.spec.tenants else None
    if selector is None:
        return frozenset({own})
    among = {own}
    if may_share:
        among |= {*judgement.namespaces, *(t.namespace for t in judgement.tenants.values())}
    labels = judgement.namespaces
    return frozenset(name for name in among if selector.matches(labels.get(name, {})))


def served_tiers(
    pool: ServingPool, judgement: Judgement, namespaces: Collection[str]
) -> list[PoolTier]:
    """Those that the spec lists, or else all that may be claimed from the namespaces. One that
    cannot be read is among these, for nobody knows who may claim it."""
    if pool.spec.tiers:
        return pool.spec.tiers
    return [
        PoolTier(name=name)
        for name, verdict in judgement.tiers.items()
        if verdict.tier is None or any(judgement.tier_allows(name, ns) for ns in namespaces)
    ]


def not_allowed(pool: ServingPool, may_share: bool) -> list[Fault]:
    """Where the pool asks for namespaces that it may not serve."""
    if may_share or not (pool.spec.tenants and pool.spec.tenants.namespace_selector):
        return []
    return [
        Fault(
            ConditionType.ACCEPTED,
            Reason.NAMESPACE_NOT_ALLOWED,
            "spec.tenants.namespaceSelector: pools of namespace "
            f"{pool.metadata.namespace} may not serve Tenants of other namespaces, so only its own "
            "are served; remove the selector, or have the namespace added to the operator's "
            "setting --shared-pool-namespaces",
        )
    ]
