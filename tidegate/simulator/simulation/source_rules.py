"""The rules of source 000 as it words them, inside the engine, for comparison.

* Order: ``vft = max(last_vft, now) + (est_initial + est_remaining) / weight``, with ``est_initial``
  the seconds of the prefill and ``est_remaining`` the expected decode steps, in seconds too (the
  source mixes units; in one unit the formula is VirtualClock, which makes whoever used idle
  capacity wait for it later). ``last_vft`` is the tier's, ``weight`` its rank from below.
* Victim: the lowest tier, in it the request with the lowest ``vft`` (which is the least served one:
  the rule that design section 6 turns round). Never one of higher weight for one of lower.
* Prefill: 30% of the step, decodes first; a preempted request waits min(500 ms, queue x 10 ms).

Without KV pools and pauses, which the source has as separate remedies.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.scheduling.contracts import Policy
from tidegate.scheduling.outcomes import Outcome
from tidegate.simulator.engine_model import (
    Engine,
    EngineRequest,
    StepDecisions,
    StepTimeModel,
)
from tidegate.simulator.simulation.direct_front import DirectFront
from tidegate.simulator.simulation.request import SimRequest

BUDGET_RATIO = 0.3
BACKOFF_PER_QUEUED_SECONDS = 0.010
BACKOFF_MAX_SECONDS = 0.5
EXPECTED_DECODE_STEPS = 256
"""Where nothing is known of a tier yet."""


class _Front(DirectFront):
    """Sends at once, and tells the rules what it sends."""

    def __init__(self, rules: SourceRulesHook) -> None:
        super().__init__({})
        self._rules = rules

    def submit(self, request: SimRequest, now: float) -> Outcome | None:
        refusal = super().submit(request, now)
        if refusal is None:
            self._rules.arrived(request, now)
        return refusal


class SourceRulesHook:
    """Finish-time order and victims of source 000."""

    def __init__(self, policy: Policy, step_time: StepTimeModel) -> None:
        ranked = sorted(policy.tiers, key=lambda tier: tier.priority)
        self._weights = {tier.name: rank + 1 for rank, tier in enumerate(ranked)}
        self._last_vft = dict.fromkeys(self._weights, 0.0)
        self._step_time = step_time
        self._vft: dict[str, float] = {}
        self._tier: dict[str, str] = {}
        self._not_before: dict[str, float] = {}
        self._seen_preemptions: dict[str, int] = {}

    def front(self) -> DirectFront:
        """The front that goes with it."""
        return _Front(self)

    def arrived(self, request: SimRequest, now: float) -> None:
        """Its finish time is set once, on arrival."""
        tier = request.tier
        time = self._step_time
        prefill_seconds = time.seconds(request.planned.prompt_tokens)
        decode_seconds = EXPECTED_DECODE_STEPS * time.seconds(1)
        cost_seconds = (prefill_seconds + decode_seconds) / self._weights[tier]
        self._last_vft[tier] = max(self._last_vft[tier], now) + cost_seconds
        self._vft[request.id] = self._last_vft[tier]
        self._tier[request.id] = tier

    def keeps_cached(self, request: EngineRequest) -> bool:
        return True

    def plan(self, engine: Engine, now: float) -> StepDecisions:
        self._note_preempted(engine, now)
        waiting = sorted(
            (one for one in engine.waiting if self._not_before.get(one.request_id, 0.0) <= now),
            key=lambda one: self._vft[one.request_id],
        )
        victims = self._victims(engine, waiting[0]) if waiting else []
        # The last in order is the engine's first victim: lowest weight, then lowest finish time.
        staying = [one for one in engine.running if one not in victims]
        order = sorted(
            staying,
            key=lambda one: (-self._weight(one), -self._vft[one.request_id]),
        )
        return StepDecisions(
            preempt=victims,
            order=order,
            most_tokens=self._grants(engine, order, waiting),
            admit=[one for one in waiting if one not in victims],
        )

    def _grants(
        self, engine: Engine, running: list[EngineRequest], waiting: list[EngineRequest]
    ) -> Mapping[str, int]:
        decodes = sum(one.total_tokens - one.computed_tokens == 1 for one in running)
        budget = engine.config.max_num_batched_tokens - decodes
        if decodes:
            budget = min(budget, int(BUDGET_RATIO * engine.config.max_num_batched_tokens))
        grants: dict[str, int] = {}
        prefills = [one for one in running if one.total_tokens - one.computed_tokens > 1]
        prefills.sort(key=lambda one: self._vft[one.request_id])
        for one in (*prefills, *waiting):
            left = one.total_tokens - one.computed_tokens
            grants[one.request_id] = min(left, budget)
            budget -= grants[one.request_id]
        return grants

    def _victims(self, engine: Engine, head: EngineRequest) -> list[EngineRequest]:
        """Whose blocks the head needs, of lower weight only; nobody where they do not suffice."""
        needed = -(-head.total_tokens // engine.config.block_size) - engine.kv.free_blocks
        if needed <= 0:
            return []
        weight = self._weight(head)
        candidates = sorted(
            (one for one in engine.running if self._weight(one) < weight),
            key=lambda one: (self._weight(one), self._vft[one.request_id]),
        )
        victims: list[EngineRequest] = []
        for one in candidates:
            victims.append(one)
            needed -= len(one.blocks)
            if needed <= 0:
                return victims
        return []

    def _note_preempted(self, engine: Engine, now: float) -> None:
        wait = min(BACKOFF_MAX_SECONDS, BACKOFF_PER_QUEUED_SECONDS * len(engine.waiting))
        for one in engine.waiting:
            if one.preemptions > self._seen_preemptions.get(one.request_id, 0):
                self._seen_preemptions[one.request_id] = one.preemptions
                self._not_before[one.request_id] = now + wait

    def _weight(self, one: EngineRequest) -> int:
        return self._weights[self._tier[one.request_id]]
