"""Which pools a change of tiers and tenants concerns. Pure.

Theory of operation. One tenant's new key or weight is no news to a pool that does not serve its
namespace, and with hundreds of pools, compiling each anew for every edit of a Tenant would take
longer than a revocation may. So two judgements are compared: a changed tier or label of a namespace
concerns every pool; a changed Tenant those that serve it now, and those that may, by their own
namespace or by a selector of others. In doubt a pool is concerned; and each resync looks at all of
them anyway.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tidegate_operator.judge import Judgement

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class JudgementChange:
    """The difference between two judgements, as far as pools care."""

    everywhere: bool
    """Something changed that every pool reads."""
    tenants: frozenset[str] = frozenset()
    """namespace/name of those that came, went or changed."""
    namespaces: frozenset[str] = frozenset()
    """Of these tenants."""

    def concerns(self, pool: Json, served: Collection[str]) -> bool:
        """Whether a pool, as the API server has it, may serve other rows by it; ``served`` are the
        tenants that it serves now."""
        if self.everywhere or not self.tenants.isdisjoint(served):
            return True
        return bool(self.tenants) and (
            pool["metadata"]["namespace"] in self.namespaces or _selects_others(pool)
        )


NO_CHANGE = JudgementChange(everywhere=False)


def judgement_change(before: Judgement | None, now: Judgement) -> JudgementChange:
    """What changed; before anything was judged, everything did."""
    if before is None or (before.tiers, before.namespaces) != (now.tiers, now.namespaces):
        return JudgementChange(everywhere=True)
    names = frozenset(
        name
        for name in before.tenants.keys() | now.tenants.keys()
        if before.tenants.get(name) != now.tenants.get(name)
    )
    return JudgementChange(False, names, frozenset(name.partition("/")[0] for name in names))


def _selects_others(pool: Json) -> bool:
    spec = pool.get("spec") or {}
    return bool(spec.get("tenants"))
