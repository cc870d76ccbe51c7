"""The engine groups of a pool, resolved: which there are, and how many pods each has. Pure.

A pool without ``engineGroups`` is one group of the name ``main``, whose children have the pool's
own name. Groups that a pool no longer has are *former* ones: they give up their pods one by one, as
those that replace them begin to serve, so that it takes no more GPUs than before; then they are
removed. None of it begins before all of those exist: where the cluster refuses one of them, or the
pool has too few replicas for them, nothing takes over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegate_operator.api.conditions import ConditionType, Reason
from tidegate_operator.api.engine_groups import Draft
from tidegate_operator.api.serving_pool import ServingPool
from tidegate_operator.apportion import apportion
from tidegate_operator.findings import Fault
from tidegate_operator.names import MAIN_GROUP


@dataclass(frozen=True, slots=True)
class Group:
    """One engine group."""

    name: str
    replicas: int
    tiers: tuple[str, ...] = ()
    draft: Draft | None = None


def engine_groups(
    pool: ServingPool,
    running: Mapping[str, int] | None = None,
    scaled: Mapping[str, int] | None = None,
) -> list[Group]:
    """The groups of the spec, in its order; ``running`` are the replicas of those that exist,
    which stay where the pool has too few for all of its groups, ``scaled`` what autoscaling wants
    of each, where it has decided already."""
    spec, replicas = pool.spec, pool.spec.replicas
    if spec.autoscaling is not None:
        bounds = spec.autoscaling.resolved(prometheus=False).group
        shares = {group.name: group.share or 1 for group in spec.engine_groups or ()}
        shares = shares or {MAIN_GROUP: 1}
        known = _begun_with(shares, running or {}) | dict(running or {}) | dict(scaled or {})
        counts: Sequence[int] = [
            min(max(known.get(name, 0), bounds.minimum), bounds.maximum) for name in shares
        ]
    elif not spec.engine_groups:
        counts = [replicas]
    elif replicas == 0:
        counts = [0] * len(spec.engine_groups)
    elif too_few(pool):
        counts = [(running or {}).get(group.name, 0) for group in spec.engine_groups]
    else:
        counts = apportion(replicas, [group.share or 1 for group in spec.engine_groups])
    if not spec.engine_groups:
        return [Group(MAIN_GROUP, counts[0])]
    return [
        Group(group.name, count, tuple(group.tiers or ()), group.draft)
        for group, count in zip(spec.engine_groups, counts, strict=True)
    ]


def _begun_with(shares: Mapping[str, int], running: Mapping[str, int]) -> dict[str, int]:
    """Pods of groups that are new, where autoscaling did not decide yet: those of the groups that
    they replace."""
    new = {name: share for name, share in shares.items() if name not in running}
    freed = sum(running[name] for name in running.keys() - shares.keys())
    if not new or freed < len(new):
        return {}
    return dict(zip(new, apportion(freed, list(new.values())), strict=True))


def too_few(pool: ServingPool) -> Fault | None:
    """Whether there are fewer replicas than groups, but some."""
    groups, replicas = len(pool.spec.engine_groups or ()), pool.spec.replicas
    if pool.spec.autoscaling is not None:
        return None
    if not 0 < replicas < groups:
        return None
    return Fault(
        ConditionType.ACCEPTED,
        Reason.TOO_FEW_REPLICAS,
        f"spec.replicas: {replicas} for {groups} engineGroups, of which each needs a pod; so all "
        f"keep the pods that they have: set at least {groups}, or 0 for none, or remove groups",
    )


def former_groups(
    pool: ServingPool,
    wanted: Sequence[Group],
    running: Mapping[str, int],
    ready: Mapping[str, int],
) -> list[Group]:
    """Groups with pods that the spec does not name any more, and how many they keep for now.

    With one pod fewer than are still missing of the wanted ones, there is always room for the next
    of those, and never less than that served.
    """
    total = sum(group.replicas for group in wanted)
    names = {group.name for group in wanted}
    former = sorted(running.keys() - names)
    if too_few(pool) or not names <= running.keys():
        return [Group(name, running[name]) for name in former]
    missing = max(0, total - sum(ready.get(name, 0) for name in names) - 1)
    kept = []
    for name in former:
        keeps = min(running[name], missing)
        missing -= keeps
        kept.append(Group(name, keeps))
    return kept


def leading_group(groups: Sequence[Group], ready: Mapping[str, int]) -> str:
    """Where the pool's own Service leads: the first group of those given that serves."""
    return next((group.name for group in groups if ready.get(group.name)), groups[0].name)


def home_of(pool: ServingPool, tier: str) -> str | None:
    """The group that is the tier's home; None: where the pool's own Service leads."""
    for group in pool.spec.engine_groups or ():
        if tier in (group.tiers or ()):
            return group.name
    return None
