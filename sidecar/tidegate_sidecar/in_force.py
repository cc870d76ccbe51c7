"""The policy in force, indexed for the hot path."""

from __future__ import annotations

from tidegate.scheduling.contracts import (
    Bundle,
    ModelPolicy,
    SchedulingMode,
    TenantPolicy,
    TierPolicy,
)

VLLM_LOWEST_PRIORITY = 2**31 - 1


class InForce:
    """One generation of policy and keys; immutable.

    ``policy`` is that of the bundle as it holds in ``engine_group``; unset: as it is. ``served`` is
    the model of the engine that runs. Another task needs another engine, and comes
    with it; all else of the policy, a revoked key above all, does not wait for that.
    """

    __slots__ = ("_priorities", "_tenants", "_tiers", "bundle", "keys", "model", "policy")

    def __init__(
        self,
        bundle: Bundle,
        served: ModelPolicy | None = None,
        engine_group: str | None = None,
    ) -> None:
        self.bundle = bundle
        policy = bundle.policy
        self.policy = policy if engine_group is None else policy.in_group(engine_group)
        self.keys = bundle.keys.keys
        self.model = bundle.policy.model
        if served is not None and served.task is not self.model.task:
            self.model = served
        self._tiers = {tier.name: tier for tier in self.policy.tiers}
        self._tenants = {tenant.name: tenant for tenant in bundle.policy.tenants}
        ordered = bundle.policy.scheduling_mode is SchedulingMode.TIDEGATE
        self._priorities = {
            tier.name: engine_priority(tier.priority) if ordered else 0
            for tier in bundle.policy.tiers
        }

    def tenant(self, name: str) -> TenantPolicy | None:
        """The tenant's row; None: a key of a tenant that this pool does not serve."""
        return self._tenants.get(name)

    def model_of(self, tenant: TenantPolicy) -> str | None:
        """The model that it may call; None: its list leaves it none of this pool."""
        name = self.model.name
        return name if not tenant.models or name in tenant.models else None

    def tier_of(self, tenant: TenantPolicy) -> TierPolicy:
        """Its tier (a policy whose tenant has none is refused when it is decoded)."""
        return self._tiers[tenant.tier]

    def engine_priority_of(self, tenant: TenantPolicy) -> int:
        """What the engine is told; 0, vLLM's default, is not sent."""
        return self._priorities[tenant.tier]


def engine_priority(tier_priority: int) -> int:
    """vLLM's priority (lower is earlier) of a tier's (higher is earlier): the one conversion."""
    return min(-tier_priority, VLLM_LOWEST_PRIORITY)
