"""A group of engines as a queue of tokens in virtual time, for tests of scaling decisions.

Pods serve promised tokens at a fixed rate each, and start to serve a while after they were asked
for; what is not served waits. The signals are computed as the operator and Prometheus would.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tidegate_operator.autoscale import signals
from tidegate_operator.autoscale.capacity import Rate
from tidegate_operator.autoscale.decision import Decision, GroupScaler, Look, Step
from tidegate_operator.autoscale.policy import ScalingPolicy
from tidegate_operator.autoscale.signals import Burn, TierWait, Verdict

TARGET_SECONDS = 0.5
BUDGET = 0.01
LOOK_SECONDS = 5.0
Load = Callable[[float], float]
"""Tokens per second that arrive at a time."""


@dataclass
class ScaledGroup:
    """The group and its scaler; ``run`` lets time pass."""

    policy: ScalingPolicy
    pods: int = 1
    tokens_per_second: float = 1000.0
    """Of one pod."""
    start_seconds: float = 120.0
    throttles: bool = False
    """What would wait longer than promised is refused, as the sidecars do."""
    missing: Callable[[float], str | None] = lambda now: None
    """Why Prometheus says nothing at a time."""
    now: float = 1_000_000.0
    backlog: float = 0.0
    steps: list[Step] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)
    """Time and seconds, one for each look."""
    decisions: list[Decision] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scaler = GroupScaler(self.pods)
        self._started = deque([self.now - self.start_seconds] * self.pods)
        self._burns = {seconds: _Mean(seconds) for seconds in (300.0, 3600.0)}

    def run(self, seconds: float, load: Load) -> None:
        """Let the load arrive for so long."""
        end = self.now + seconds
        begin = self.now
        while self.now < end:
            self._look(load(self.now - begin))

    @property
    def ready(self) -> int:
        return sum(self.now - started >= self.start_seconds for started in self._started)

    def _look(self, arriving: float) -> None:
        ready = self.ready
        could = ready * self.tokens_per_second
        asked = arriving + self.backlog / LOOK_SECONDS
        served = min(asked, could)
        growth = arriving - served
        self.backlog = (asked - served) * LOOK_SECONDS
        refused = 0.0
        if self.throttles and could:
            kept = min(self.backlog, TARGET_SECONDS * could)
            refused = (self.backlog - kept) / LOOK_SECONDS
            growth -= refused
            self.backlog = kept
        wait = self.backlog / could if could else 10.0
        self.waits.append((self.now, wait))
        broken = refused / asked if refused else float(wait > TARGET_SECONDS)
        for burn in self._burns.values():
            burn.add(self.now, broken / BUDGET)
        self.now += LOOK_SECONDS
        refusals = refused / (refused + served) if refused else 0.0
        tier = TierWait("t0", TARGET_SECONDS * signals.WAIT_PART, wait, refusals, BUDGET)
        look = Look(
            ready,
            [v for v in self._verdicts(tier) if v.signal in self.policy.signals],
            Rate(served, self.backlog, growth, served / could if could else None, refused),
            short=tier.short,
        )
        before = self.scaler.desired
        decision = self.scaler.decide(self.now, look, self.policy)
        self.decisions.append(decision)
        if decision.desired != before:
            self.steps.append(self.scaler.history[-1])
        while len(self._started) > decision.desired:
            self._started.pop()
        while len(self._started) < decision.desired:
            self._started.append(self.now)

    def _verdicts(self, tier: TierWait) -> Sequence[Verdict]:
        wait = signals.queue_wait([tier])
        if why := self.missing(self.now):
            return [wait, signals.burn_rate(why), signals.alerts(why)]
        burn = Burn("t0", "TimeToFirstToken", *(burn.value for burn in self._burns.values()))
        firing = [signals.Alert("Burn", "page", "t0", 1800.0)] if burn.long > 14.4 else []
        firing = firing if burn.short > 14.4 else []
        return [wait, signals.burn_rate([burn]), signals.alerts(firing)]


class _Mean:
    """The mean of the values of a window."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._values: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def add(self, now: float, value: float) -> None:
        self._values.append((now, value))
        self._sum += value
        while self._values[0][0] < now - self._seconds:
            self._sum -= self._values.popleft()[1]

    @property
    def value(self) -> float:
        return self._sum / len(self._values)
