"""One engine group of a pool: brought to its plan, and removed once it has no pods.

The StatefulSet is made first and removed last: it tells that there is such a group, so nothing of
one is left where the cluster refuses its pods and it is given up.
"""

from __future__ import annotations

from tidegate_operator import names
from tidegate_operator.group_rollout import GroupPlan
from tidegate_operator.kinds import POD_DISRUPTION_BUDGET, SERVICE, STATEFUL_SET
from tidegate_operator.kube import Json
from tidegate_operator.pool_children import PoolChildren


async def apply_group(run: PoolChildren, group: GroupPlan, live: Json | None) -> Json | None:
    """Bring its objects to the plan; its StatefulSet, where there is one, of which ``live`` is the
    present one."""
    children, name = group.children, group.children.disruption_budget["metadata"]["name"]
    has_service = group.name != names.MAIN_GROUP
    if group.removed:
        for kind in (*([SERVICE] if has_service else []), POD_DISRUPTION_BUDGET, STATEFUL_SET):
            if not await run.remove(kind, name):
                return live
        return None
    found = await run.apply_pods(STATEFUL_SET, group.plan, live, "spec.engine") or live
    if found is None:
        return None
    if children.service is not None:
        await run.apply(SERVICE, children.service)
    elif has_service:
        await run.remove(SERVICE, name)
    await run.apply(POD_DISRUPTION_BUDGET, children.disruption_budget)
    return found
