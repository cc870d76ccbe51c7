"""Which engine group serves a request: its tier's home, another one, or the fallback. Pure.

Theory of operation. A request goes to its tier's home, the engine group whose draft was made for
its kind of text. It goes elsewhere in three cases:

* *Spilled*: home is busy (even its least loaded pod has a request for each seat, or some wait), may
  be left (``Spill.WHEN_IDLE``), and another group has idle capacity: a pod with half of its seats
  free, as far as 0.8 of them. Nothing is taken from those who are at home there.
* *Away*: home has no pod that serves: then any pod of any group is better than none. Or it is just
  back, and did not stay the last time: then idle capacity of others is.
* *Fallback*: no pod of any group serves. The fallback's pods serve then, and its tiers only.

It never waits for a decision, and decisions do not flap (:mod:`.steadiness`): who spills does so
for a while, and who came back and went again is trusted after a wait, as long as there is another
way. Where there is none, whoever serves is taken.

A pod of a group that the policy does not name (one that the pool had before) is nobody's home.

Invariants: a request whose home is there to stay and not busy goes home, and so does one that may
not spill while home has any pod. The fallback serves its own tiers alone, and nobody while a group
serves that is there to stay. Nobody is refused who may be served by a pod that serves.
Cost: O(pods) a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from tidegate.scheduling.contracts import FALLBACK_GROUP, Policy, Spill
from tidegate_sidecar.router.spread import to_hand_back
from tidegate_sidecar.router.steadiness import Comeback, Level

BUSY_FROM, BUSY_UNTIL = 1.0, 0.8
FULL_FROM, FULL_UNTIL = 0.8, 0.5
_UNKNOWN_LOAD = 0.6
"""Of a pod that has something to do, no queue, and seats that nobody knows: neither busy nor idle,
and no reason to think that it fills up."""


class Placement(StrEnum):
    """Where a request is served."""

    HOME = "home"
    SPILLED = "spilled"
    AWAY = "away"
    FALLBACK = "fallback"


class GroupPod(Protocol):
    """A pod that serves, as far as this needs to know it."""

    @property
    def name(self) -> str:
        """Unique."""

    @property
    def group(self) -> str:
        """Its engine group."""

    @property
    def queued(self) -> int:
        """Requests that wait in its sidecar."""

    @property
    def congested(self) -> bool:
        """Some have waited there from one reading to the next."""

    @property
    def in_hand(self) -> int:
        """Sequences that wait or run."""

    @property
    def seats(self) -> int | None:
        """Sequences that its engine runs at once; None: not known."""


Pod = TypeVar("Pod", bound=GroupPod)


@dataclass(frozen=True, slots=True)
class Route(Generic[Pod]):
    """The pods that may serve a request, never none, and what they are to it."""

    placement: Placement
    pods: Sequence[Pod]


class _Standing:
    """Of one group, over time."""

    __slots__ = ("busy", "full", "there")

    def __init__(self) -> None:
        self.busy = Level(BUSY_FROM, BUSY_UNTIL)
        self.full = Level(FULL_FROM, FULL_UNTIL)
        self.there = Comeback()


class Groups:
    """The groups of one pool, as one router sees them."""

    def __init__(self) -> None:
        self._home: Mapping[str, str] = {}
        self._stays: frozenset[str] = frozenset()
        self._fallback_tiers: frozenset[str] = frozenset()
        self._standings: dict[str, _Standing] = {}
        self._any = Comeback()
        """Of all groups but the fallback together."""

    def apply(self, policy: Policy) -> None:
        """From here on by this policy; how the groups stood stays known."""
        groups = policy.engine_groups
        self._home = {tier: group.name for group in groups for tier in group.tiers}
        self._stays = frozenset(group.name for group in groups if group.spill is Spill.NEVER)
        fallback = policy.fallback
        self._fallback_tiers = frozenset() if fallback is None else frozenset(fallback.tiers)

    def look(self, serving: Sequence[GroupPod], now: float) -> None:
        """How things stand; before each :meth:`route`, with all pods that serve."""
        loads: dict[str, float] = {}
        for pod in serving:
            if pod.group != FALLBACK_GROUP:
                loads[pod.group] = min(_load(pod), loads.get(pod.group, float("inf")))
        for name in loads.keys() - self._standings.keys():
            self._standings[name] = _Standing()
        for name, standing in self._standings.items():
            load = loads.get(name)
            standing.there.look(load is not None, now)
            if load is not None:
                standing.busy.look(load, now)
                standing.full.look(load, now)
        self._any.look(bool(loads), now)

    def route(self, tier: str, serving: Sequence[Pod]) -> Route[Pod] | None:
        """For a request of a tier, among these pods that serve; None: nobody may serve it."""
        spare: list[Pod] = []
        if tier in self._fallback_tiers:
            spare = [pod for pod in serving if pod.group == FALLBACK_GROUP]
        groups = [pod for pod in serving if pod.group != FALLBACK_GROUP]
        if spare and not (groups and self._any.used):
            return Route(Placement.FALLBACK, spare)
        if not groups:
            return None
        home = self._home.get(tier)
        if home is None:
            return Route(Placement.HOME, groups)
        there = [pod for pod in groups if pod.group == home]
        others = [pod for pod in groups if pod.group != home]
        if not there:
            return Route(Placement.AWAY, others)
        if home not in self._stays:
            away = not self._standings[home].there.used
            if away or self._standings[home].busy.high:
                idle = [pod for pod in others if self._is_idle(pod)]
                if idle:
                    return Route(Placement.AWAY if away else Placement.SPILLED, idle)
        return Route(Placement.HOME, there)

    def to_hand_back(self, serving: Sequence[Pod]) -> dict[str, int]:
        """How many queued requests each pod should hand back, since there is a better place.

        A pod that is free takes from others of its group; idle capacity elsewhere from groups that
        spill, as far as it goes; and all from the fallback, once a group serves again.
        """
        by_group: dict[str, list[Pod]] = {}
        for pod in serving:
            by_group.setdefault(pod.group, []).append(pod)
        spare = by_group.pop(FALLBACK_GROUP, [])
        moves = {pod.name: pod.queued for pod in spare if pod.queued and self._any.used}
        if spare and not moves:
            moves = to_hand_back({pod.name: pod.queued for pod in spare})
        room = sum(_room(pod) for pods in by_group.values() for pod in pods if self._is_idle(pod))
        for name, pods in by_group.items():
            moves |= to_hand_back({pod.name: pod.queued for pod in pods})
            if name in self._stays or not self._standings[name].busy.high:
                continue
            for pod in pods:
                if (leaves := min(pod.queued, room)) > moves.get(pod.name, 0):
                    moves[pod.name] = leaves
                    room -= leaves
        return moves

    def _is_idle(self, pod: GroupPod) -> bool:
        return not self._standings[pod.group].full.high and _load(pod) < FULL_FROM


def _load(pod: GroupPod) -> float:
    """What it has to do, per seat; from 1 on whoever comes has to wait."""
    if pod.congested:
        return BUSY_FROM
    if not pod.in_hand:
        return 0.0
    return _UNKNOWN_LOAD if pod.seats is None else pod.in_hand / pod.seats


def _room(pod: GroupPod) -> int:
    """How many more it may get and still have idle capacity."""
    if pod.seats is None:
        return 0 if pod.in_hand else 1
    return max(0, max(1, int(FULL_FROM * pod.seats)) - pod.in_hand)
