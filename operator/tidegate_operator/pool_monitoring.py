"""What the Prometheus operator reads of a pool, where the cluster has its kinds.

No pod waits for it: what cannot be applied, such as for a webhook that is away, is noted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidegate.scheduling.contracts import TierPolicy
from tidegate_operator.api.serving_pool import ServingPool
from tidegate_operator.kinds import POD_MONITOR, PROMETHEUS_RULE, Kind
from tidegate_operator.kube import Json, NotFound, Unavailable
from tidegate_operator.pool_children import PoolChildren
from tidegate_operator.render import Children
from tidegate_operator.slo import prometheus_rule


async def apply_monitoring(
    run: PoolChildren,
    pool: ServingPool,
    tiers: Sequence[TierPolicy],
    children: Children,
    serves: Callable[[Kind], bool],
    runbooks: str,
) -> None:
    """Bring it to what the pool wants; ``serves`` says which kinds the cluster has, ``runbooks`` is
    where docs/runbooks/ is read."""
    labels = (pool.spec.observability and pool.spec.observability.rule_labels) or {}
    monitors = [children.pod_monitor, *([children.router.pod_monitor] if children.router else [])]
    wanted: list[tuple[Kind, str, Json | None]] = [
        *((POD_MONITOR, monitor["metadata"]["name"], monitor) for monitor in monitors),
        (PROMETHEUS_RULE, pool.metadata.name, prometheus_rule(pool, tiers, labels, runbooks)),
    ]
    for kind, name, desired in wanted:
        if not serves(kind):
            continue
        try:
            if desired is None:
                await run.remove(kind, name)
            else:
                await run.apply(kind, desired)
        except NotFound:  # the kind went away since
            pass
        except Unavailable as error:
            run.refused(kind, name, error)
