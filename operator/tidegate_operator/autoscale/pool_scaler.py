"""The engine groups of one pool, scaled: who is at home where, and what all of them may have.

Theory of operation. A tier's need is that of its home, so each signal is split by home and each
group decides for itself (:mod:`tidegate_operator.autoscale.decision`). Where all groups together
would have more than the pool may have, those that are looked at first, in the order of the spec,
get what is left. What was decided survives the operator: sizes in the StatefulSets, steps in the
pool's status.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tidegate.scheduling.contracts import TierPolicy
from tidegate_operator.autoscale import signals
from tidegate_operator.autoscale.decision import HISTORY, Decision, GroupScaler, Look, Step
from tidegate_operator.autoscale.load import group_load
from tidegate_operator.autoscale.policy import PoolScaling, ScalingPolicy, ScalingSignal
from tidegate_operator.autoscale.prometheus import Told
from tidegate_operator.autoscale.signals import Alert, Burn, Verdict
from tidegate_operator.figures import Reading


@dataclass(frozen=True, slots=True)
class GroupNow:
    """One engine group as it is."""

    name: str
    tiers: Sequence[TierPolicy]
    """At home here."""
    pods: Mapping[str, Sequence[Reading]]
    """What the sidecar of each ready pod was read to say, by pod, oldest first."""


class PoolScaler:
    """The scalers of a pool's groups."""

    def __init__(self, sizes: Mapping[str, int], history: Mapping[str, Sequence[Step]]) -> None:
        """``sizes`` and ``history`` by group, as they were last."""
        self._history = history
        self._groups = {name: GroupScaler(n, history.get(name, ())) for name, n in sizes.items()}
        self.decisions: dict[str, Decision] = {}

    @property
    def sizes(self) -> dict[str, int]:
        """How many pods each group should have."""
        return {name: group.desired for name, group in self._groups.items()}

    def steps(self) -> list[tuple[str, Step]]:
        """The last steps of all groups, newest first."""
        found = [(name, step) for name, group in self._groups.items() for step in group.history]
        return sorted(found, key=lambda item: -item[1].at)[:HISTORY]

    def adopt(self, sizes: Mapping[str, int]) -> None:
        """Take up groups that are new, with what they have, and let those go that are no more."""
        for name in self._groups.keys() - sizes.keys():
            del self._groups[name]
            self.decisions.pop(name, None)
        for name in sizes.keys() - self._groups.keys():
            self._groups[name] = GroupScaler(sizes[name], self._history.get(name, ()))

    def decide(
        self,
        now_seconds: float,
        monotonic_seconds: float,
        groups: Sequence[GroupNow],
        told: Told | None,
        scaling: PoolScaling,
    ) -> None:
        """Look at every group once; ``told`` is None where no signal needs a Prometheus."""
        for group in groups:
            scaler = self._groups.get(group.name)
            if scaler is None:
                continue
            policy = scaling.group
            if scaling.most is not None:
                others = sum(self.sizes.values()) - scaler.desired
                room = max(policy.minimum, scaling.most - others)
                policy = replace(policy, maximum=min(policy.maximum, room))
            look = _look(group, monotonic_seconds, told, policy)
            self.decisions[group.name] = scaler.decide(now_seconds, look, policy)


def _look(
    group: GroupNow, monotonic_seconds: float, told: Told | None, policy: ScalingPolicy
) -> Look:
    load = group_load(group.pods, group.tiers, monotonic_seconds)
    waits = load if isinstance(load, str) else load.waits
    if not waits:
        waits = "no tier that is at home here is promised a time to its first token or its end"
    verdicts = {ScalingSignal.QUEUE_WAIT: signals.queue_wait(waits)}
    if told is not None:
        burns, firing = _of_home(told, {t.name for t in group.tiers if t.slo_objectives})
        verdicts[ScalingSignal.BURN_RATE] = signals.burn_rate(burns)
        verdicts[ScalingSignal.ALERTS] = signals.alerts(firing)
    asked: list[Verdict] = [v for s, v in verdicts.items() if s in policy.signals]
    if isinstance(load, str):
        return Look(len(group.pods), asked)
    return Look(len(group.pods), asked, load.rate, load.short)


def _of_home(told: Told, tiers: Collection[str]) -> tuple[list[Burn] | str, list[Alert] | str]:
    """What was told of these tiers."""
    if not tiers:
        why = "no tier that is at home here is promised anything"
        return why, why
    burns, firing = told.burns, told.alerts
    return (
        burns if isinstance(burns, str) else [b for b in burns if b.tier in tiers],
        firing if isinstance(firing, str) else [a for a in firing if a.tier in tiers],
    )
