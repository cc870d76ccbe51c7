"""How many pods one group of engines should have: pure, with the time as an argument.

Theory of operation. Each look takes the signals' verdicts and what is known of the load, and ends
in one number and a sentence why.

* **Up** at once by need: as many pods as the demand takes where one pod's capacity is known, else
  one more, unless the queue is shrinking. A signal that looks back can ask for more than the demand
  only once the pods added before have served well for as long as it looks back: until then it can't
  know better. While pods are starting, only the demand can ask for more.
* **Down** only while every signal is calm and so many serving pods less would have held the peak
  of the window.
* **Missing** data (no answer, no series, NaN, too old) asks for nothing and keeps every pod;
  signals that do have data still let the group grow.
* Bounds hold at once, in both directions.

Invariants. A step is undone no sooner than after its undoing's own window, since the windows begin
anew with each step. No step within its direction's cooldown but for the bounds. Never outside the
bounds. Equal input gives equal output; nothing here reads a clock.

Sources: Kubernetes' HorizontalPodAutoscaler (windows, pace), the SRE workbook (burn rates).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tidegate_operator.autoscale.capacity import Capacity, Rate
from tidegate_operator.autoscale.policy import ScalingPolicy
from tidegate_operator.autoscale.signals import Verdict

HISTORY = 5
RATE_SECONDS = 30.0
"""What waits and rates look back on; a reading counts for the pods that served all of it."""


class StepReason(StrEnum):
    """Why a group's size changed."""

    BOUNDS = "Bounds"
    ALERTS = "Alerts"
    BURN_RATE = "BurnRate"
    QUEUE_WAIT = "QueueWait"
    CALM = "Calm"


@dataclass(frozen=True, slots=True)
class Step:
    """One change of a group's size."""

    at: float
    """Seconds since the epoch."""
    before: int
    after: int
    reason: StepReason
    text: str


@dataclass(frozen=True, slots=True)
class Look:
    """What is known of a group now."""

    ready: int
    """Pods that serve."""
    verdicts: Sequence[Verdict]
    """Of the signals that the pool scales by."""
    rate: Rate | None = None
    """Of the promised tiers; None: not known."""
    short: bool = False
    """Promised requests wait beyond what they bear."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How many pods there should be."""

    desired: int
    text: str
    """Why it is so, or what is waited for; without figures, so that it changes only with the
    reason. Those stand in the steps."""
    held: bool = False
    """Data are missing, so no pod may go."""


class GroupScaler:
    """The state between two looks at one group."""

    def __init__(self, desired: int, history: Sequence[Step] = ()) -> None:
        """``history`` of an earlier process keeps cooldowns; windows begin anew."""
        self.desired = desired
        self.history = deque(history, maxlen=HISTORY)
        self.capacity = Capacity()
        self._hot_since: float | None = None
        self._calm_since: float | None = None
        self._ready = 0
        self._ready_since = 0.0
        self._settled_at: float | None = None
        """Since when all pods serve that are wanted."""
        self._short_at = 0.0
        """When requests last waited beyond what they bear."""

    def decide(self, now: float, look: Look, policy: ScalingPolicy) -> Decision:
        """Look once; ``now`` in seconds since the epoch."""
        self._note_pods(now, look)
        self._note_load(now, look, policy)
        if not policy.minimum <= self.desired <= policy.maximum:
            after = min(max(self.desired, policy.minimum), policy.maximum)
            text = f"spec.autoscaling allows {policy.minimum} to {policy.maximum} pods"
            return self._step(now, after, StepReason.BOUNDS, text)
        missing = [f"{v.signal}: {v.missing}" for v in look.verdicts if v.missing]
        hot = [v for v in look.verdicts if v.hot]
        if hot:
            self._calm_since = None
            self._hot_since = now if self._hot_since is None else self._hot_since
            return self._grow(now, look, policy, hot, held=bool(missing))
        self._hot_since = None
        if missing:
            self._calm_since = None
            return Decision(self.desired, "; ".join(missing), held=True)
        if not all(verdict.calm for verdict in look.verdicts):
            self._calm_since = None
            return Decision(self.desired, "neither short of pods nor calm")
        self._calm_since = now if self._calm_since is None else self._calm_since
        return self._shrink(now, look, policy)

    def _grow(
        self, now: float, look: Look, policy: ScalingPolicy, hot: Sequence[Verdict], *, held: bool
    ) -> Decision:
        waits = _too_soon(now, self._hot_since, policy.up.window_seconds)
        waits = waits or self._cooling(now, policy.up.cooldown_seconds)
        if self.desired >= policy.maximum:
            waits = f"{policy.maximum} pods are the most that spec.autoscaling allows"
        asking = hot[0]
        needed = self.capacity.pods_for(look.rate) if look.short and look.rate else None
        if needed is None or needed <= self.desired:
            needed = self.desired + 1
            told = [v for v in hot if self._can_tell(now, v)]
            if look.short and look.rate and look.rate.unserved_growth < 0:
                waits = waits or "the queue is shrinking"
            elif told:
                asking = told[0]
            else:
                waits = waits or "the pods added last are to show first whether they are enough"
        if waits:
            asked = " and ".join(verdict.signal for verdict in hot)
            return Decision(self.desired, f"{asked} asks for more pods: {waits}", held=held)
        most = policy.up.max_step or needed
        after = min(needed, self.desired + most, policy.maximum)
        why = "; ".join(verdict.hot or "" for verdict in hot)
        return self._step(now, after, StepReason(asking.signal.value), why, held=held)

    def _can_tell(self, now: float, verdict: Verdict) -> bool:
        """Whether it sees what the present pods do, and not only what was before them."""
        if self._settled_at is None:
            return False
        grown = any(step.after > step.before for step in self.history)
        since = max(self._settled_at, self._short_at)
        return not grown or now - since >= verdict.lookback_seconds

    def _shrink(self, now: float, look: Look, policy: ScalingPolicy) -> Decision:
        if self.desired <= policy.minimum:
            text = f"calm at the fewest pods that spec.autoscaling allows, {policy.minimum}"
            return Decision(self.desired, text)
        waits = _too_soon(now, self._calm_since, policy.down.window_seconds)
        waits = waits or self._cooling(now, policy.down.cooldown_seconds)
        if waits:
            return Decision(self.desired, f"calm; {waits}")
        most = min(policy.down.max_step or self.desired, self.desired - policy.minimum)
        for fewer in range(most, 0, -1):
            if self.capacity.holds(look.ready, fewer):  # those that go may be some that serve
                after = self.desired - fewer
                text = f"calm for {policy.down.window_seconds:g} s, and {after} would have held"
                return self._step(now, after, StepReason.CALM, text)
        return Decision(self.desired, f"calm; {self.desired - 1} pods might not hold it")

    def _cooling(self, now: float, cooldown: float) -> str | None:
        if not self.history or now - self.history[-1].at >= cooldown:
            return None
        return f"the last step was less than {cooldown:g} s ago"

    def _note_pods(self, now: float, look: Look) -> None:
        if look.ready != self._ready:
            self._ready, self._ready_since = look.ready, now
        if look.ready < self.desired:
            self._settled_at = None
        elif self._settled_at is None:
            self._settled_at = now

    def _note_load(self, now: float, look: Look, policy: ScalingPolicy) -> None:
        if look.short:
            self._short_at = now
        if look.rate is None or now - self._ready_since < RATE_SECONDS:
            return
        window = policy.down.window_seconds
        self.capacity.observe(now, look.rate, look.ready, short=look.short, window=window)

    def _step(
        self, now: float, after: int, reason: StepReason, text: str, *, held: bool = False
    ) -> Decision:
        self.history.append(Step(now, self.desired, after, reason, text))
        self.desired = after
        self._hot_since = self._calm_since = self._settled_at = None
        return Decision(after, f"{reason} changed it last", held)


def _too_soon(now: float, since: float | None, window_seconds: float) -> str | None:
    if since is not None and now - since >= window_seconds:
        return None
    return f"only so for less than its window of {window_seconds:g} s"
