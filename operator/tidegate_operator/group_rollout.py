"""The StatefulSets of a pool's engine groups, together: whose turn it is to be replaced. Pure.

Theory of operation. Each group is planned by itself (:mod:`tidegate_operator.rollout_plan`). Where
there are several, all get a changed template at once, so that the API server judges all of it, but
one after the other, in the order of the spec, may replace pods: the others are held by the
``partition`` of their StatefulSet, at which no pod is old enough to go. A group has its turn until
every pod of it is new and serves, whatever else changes meanwhile; one that does not come up holds
the change from the rest. So at most one pod of the pool is away for a change at any time. The
fallback's turn is the last, and it holds up nobody: one that finds no node stops no change, and it
stays as it is while the pods that it stands by for are replaced.

Former groups (:func:`tidegate_operator.engine_groups.former_groups`) keep the pods that they have,
held like those that wait for their turn; only their replicas go down.

Everything is read from the live objects, so a restarted or a second operator gives the same turns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidegate.scheduling.contracts import FALLBACK_GROUP
from tidegate_operator import names
from tidegate_operator.api.common import FieldError
from tidegate_operator.pool_state import rollout
from tidegate_operator.render.groups import GroupChildren
from tidegate_operator.rollout_plan import RolloutPlan, cold_digest, plan_rollout
from tidegate_operator.routing import knows_routers

Json = dict[str, Any]
FORMER = (FieldError("", ""),)
"""What keeps the template of a former group in force, as a conflict does."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """What to do for one group."""

    children: GroupChildren
    plan: RolloutPlan
    former: bool = False

    @property
    def name(self) -> str:
        """Of the group."""
        return self.children.group.name

    @property
    def removed(self) -> bool:
        """Whether its objects go."""
        return self.former and self.children.group.replicas == 0


def plan_groups(
    children: Sequence[GroupChildren], live: Mapping[str, Json], former: Sequence[str], spec: Json
) -> list[GroupPlan]:
    """A plan for each group; ``live`` are the StatefulSets that exist, by group, ``former`` the
    groups that the spec no longer names, and ``spec`` is the pool's as the API server has it."""
    plans = []
    for made in children:
        name = made.group.name
        was = name in former
        plan = plan_rollout(
            made.stateful_set,
            live.get(name),
            FORMER if was else made.conflicts,
            cold_digest(spec, name),
            knows_routers if spec.get("router") is not None else None,
        )
        if was:
            plan = replace(plan, faults=())
        plans.append(GroupPlan(made, plan, was))
    return _in_turn(plans, live) if len(plans) > 1 else plans


def stateful_sets_by_group(objects: Sequence[Json]) -> dict[str, Json]:
    """The pool's StatefulSets by the group whose pods they select."""
    return {
        obj["spec"]["selector"]["matchLabels"].get(names.GROUP_LABEL, ""): obj for obj in objects
    }


def _in_turn(plans: Sequence[GroupPlan], live: Mapping[str, Json]) -> list[GroupPlan]:
    changing = [plan.name for plan in plans if _is_changing(plan, live.get(plan.name))]
    begun = [name for name in changing if _has_turn(live[name])]
    turn = min(begun + changing, key=lambda name: name == FALLBACK_GROUP, default=None)
    held = {plan.name for plan in plans if plan.former} | set(changing) - {turn}
    return [replace(plan, plan=_partitioned(plan.plan, held=plan.name in held)) for plan in plans]


def _has_turn(live: Json) -> bool:
    """Whether its pods are being replaced."""
    update = live["spec"]["updateStrategy"].get("rollingUpdate") or {}
    return not rollout(live).settled and not update.get("partition")


def _is_changing(plan: GroupPlan, live: Json | None) -> bool:
    """Whether pods of it are or will be replaced; those of a new group are only made."""
    if live is None or plan.former:
        return False
    return plan.plan.pod is not None or not rollout(live).settled


def _partitioned(plan: RolloutPlan, *, held: bool) -> RolloutPlan:
    def with_partition(stateful_set: Json | None) -> Json | None:
        if stateful_set is None:
            return None
        made: Json = json.loads(json.dumps(stateful_set))
        partition = made["spec"]["replicas"] if held else 0
        made["spec"]["updateStrategy"]["rollingUpdate"] = {"partition": partition}
        return made

    wanted, last_good = with_partition(plan.workload), with_partition(plan.last_good)
    return replace(plan, workload=wanted, last_good=last_good)
