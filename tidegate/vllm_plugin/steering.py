"""One engine's steps, steered: asks the planner, does what the plan says, answers vLLM's hooks.

Theory of operation: ``begin`` runs before vLLM's ``schedule()``. It takes up a changed policy,
reads the engine, plans, preempts the victims, orders the running list (tier, then sequence; those
without a tier last, so that vLLM's own victims in the middle of a step, ``running[-1]``, are theirs
or the lowest tier's), and opens the waiting queue for those who may enter. vLLM then asks about
each request: ``most_tokens``, ``may_enter``.

A step without a plan is a stock step: no tier waits or runs, no policy in force (or its mode is not
Tidegate), the engine is paused, or the last steps computed nothing for ``STALL_SECONDS`` though a
plan was in force, which no plan should bring about.

Where a tier has an InterTokenLatency objective the planner is given the engine's step times
(``step_times``), else not: under all other policies no plan depends on how long anything took.

Invariant: ``failed`` leaves a stock step behind, whatever was under way, and the next plan starts
from vLLM's lists alone.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidegate.scheduling.contracts import SchedulingMode
from tidegate.scheduling.plan_request import PlanRequest, StepPlan, StepState
from tidegate.scheduling.step_plan import StepPlanner
from tidegate.scheduling.step_policy import StepPolicy, compile_step_policy
from tidegate.vllm_plugin.engine_view import EngineView
from tidegate.vllm_plugin.policy_file import PolicyFile
from tidegate.vllm_plugin.roster import Roster
from tidegate.vllm_plugin.step_notes import StepNotes
from tidegate.vllm_plugin.step_reporter import StepReporter
from tidegate.vllm_plugin.step_times import StepTimes
from tidegate.vllm_plugin.vllm_types import (
    VllmModelOutput,
    VllmRequest,
    VllmScheduler,
    VllmSchedulerOutput,
)

logger = logging.getLogger(__name__)

STALL_SECONDS = 5.0
_LAST = (1 << 30, 0)


@dataclass(slots=True)
class Counters:
    """Since the start."""

    planned_steps: int = 0
    stock_steps: int = 0
    stalls: int = 0
    preempted: int = 0
    """By plan; vLLM's own in the middle of a step are not among them."""
    vetoed: Counter[str] = field(default_factory=Counter)
    """Requests and steps, by reason."""
    failures: Counter[str] = field(default_factory=Counter)
    """By hook."""


class Steering:
    """Everything that the hooks of one scheduler share."""

    def __init__(
        self,
        scheduler: VllmScheduler,
        policy: PolicyFile,
        reporter: StepReporter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._policy = policy
        self._reporter = reporter
        self._notes = StepNotes(scheduler, reporter.tell) if reporter is not None else None
        self._times: StepTimes | None = None
        self._clock = clock
        self.roster = Roster()
        self.view = EngineView(scheduler, self.roster)
        self.counters = Counters()
        self.terms: StepPolicy | None = None
        self.plan: StepPlan | None = None
        """Of the step under way, or of the last one; None: stock."""
        self._planner: StepPlanner | None = None
        self.clipped: Mapping[str, int] = {}
        """Most tokens in this step, by request; who is not named is not clipped."""
        self._entering: set[str] = set()
        self._idle_since: float | None = None
        self._is_stale = True
        self._state: StepState | None = None
        self._plan_seconds = 0.0

    def begin(self) -> None:
        """Before ``schedule()``."""
        began = time.perf_counter()
        self.plan, self.clipped = None, {}
        self._plan_step(self._clock())
        self._plan_seconds = time.perf_counter() - began

    def _plan_step(self, now: float) -> None:
        self._take_up_policy(now)
        if self._times is not None:
            self._times.begins(now)
        if self._is_stale:
            self.roster.rebuild(self.terms, self._scheduler)
            self.view.forget()
            self._is_stale = False
        if self.terms is None or self._planner is None or not self._is_steered(now):
            self.counters.stock_steps += 1
            return
        self._state = state = self.view.state(
            self.terms, now, self._times.model if self._times is not None else None
        )
        if not state.running and not any(self.roster.lanes):
            self.counters.stock_steps += 1
            return
        plan = self._planner.plan(state)
        self.clipped = plan.most_tokens(state.prefilling or ())
        self._entering = {one.id for one in plan.admit}
        self.plan = plan
        self._preempt(plan.preempt, now)
        self._order_running()
        entries = self.roster.entries
        for name, tokens in plan.drafts.items():
            request = entries[name].request
            request.spec_token_ids = request.spec_token_ids[:tokens]
        line = [entries[one.id].request for one in plan.admit]
        self._scheduler.waiting.open([*line, *self.view.blocked(), *self.roster.others])
        self.counters.planned_steps += 1
        self.counters.vetoed.update([reason.value for reason in plan.vetoed.values()])

    def end(self, output: VllmSchedulerOutput) -> None:
        """After ``schedule()``."""
        if output.num_scheduled_tokens or self.plan is None:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = self._clock()
        if self._notes is not None:
            planned = None
            if self.plan is not None and self.terms is not None and self._state is not None:
                planned = (self.terms, self._state, self.plan)
            self._notes.scheduled(
                output,
                planned,
                self.roster.waiting,
                policy_generation=self._policy.generation,
                plan_seconds=self._plan_seconds,
                failures_total=self.counters.failures.total(),
            )
        if self._times is not None:
            self._times.scheduled(output)

    def returned(self, output: VllmSchedulerOutput, told: VllmModelOutput) -> None:
        """The output of a step is back, and vLLM has not yet looked at it."""
        if self._notes is not None:
            self._notes.returned(output, told)
        if self._times is not None:
            self._times.returned(output, self._clock())

    def arrived(self, request: VllmRequest) -> None:
        """It reaches the engine; it does not wait yet."""
        self.roster.arrived(request)
        if self._notes is not None:
            self._notes.arrived(request)

    def ended(self, request: VllmRequest) -> None:
        """It is gone."""
        self.roster.ended(request)
        if self._notes is not None:
            self._notes.ended(request)

    def close(self) -> None:
        """The engine shuts down."""
        if self._reporter is not None:
            self._reporter.close()

    def failed(self, hook: str, error: Exception) -> None:
        """A hook raised: the rest of this step is stock."""
        self.plan, self.clipped = None, {}
        self._is_stale = True
        if self._times is not None:  # it may be what failed
            self._times = StepTimes(self._scheduler, self._clock())
        self._scheduler.waiting.open_to_all()
        self.counters.failures[hook] += 1
        count = self.counters.failures[hook]
        if count & (count - 1) == 0:
            logger.error(
                "tidegate: %s failed (%d times so far); the step is vLLM's own",
                hook,
                count,
                exc_info=error,
            )

    def _take_up_policy(self, now: float) -> None:
        policy = self._policy.changed(now)
        if policy is None:
            return
        self.terms = self._planner = None
        if policy.tiers and policy.scheduling_mode is SchedulingMode.TIDEGATE:
            self.terms = compile_step_policy(policy, self.view.size)
            self._planner = StepPlanner(self.terms)
        self._is_stale = True
        if self.terms is None or not any(tier.paces_tokens for tier in self.terms.tiers):
            self._times = None
        elif self._times is None:
            self._times = StepTimes(self._scheduler, now)

    def _is_steered(self, now: float) -> bool:
        if self._scheduler.pause_state.name != "UNPAUSED":
            return False
        if self._idle_since is not None and now - self._idle_since > STALL_SECONDS:
            self.counters.stalls += 1
            self._idle_since = None
            return False
        return True

    def _preempt(self, victims: list[PlanRequest], now: float) -> None:
        scheduler = self._scheduler
        for one in victims:
            request = self.roster.entries[one.id].request
            scheduler.running.remove(request)
            scheduler._preempt_request(request, now, scheduler.requires_kv_delivery)
            self.counters.preempted += 1

    def _order_running(self) -> None:
        """Only after somebody came or went; who is preempted leaves the others in order."""
        if self.view.seats_changed:
            self._scheduler.running.sort(key=self._rank)
            self.view.seats_changed = False

    def _rank(self, request: VllmRequest) -> tuple[int, int]:
        entry = self.roster.entries.get(request.request_id)
        return (entry.one.tier, entry.one.sequence) if entry else _LAST

    def most_tokens(self, request: VllmRequest, computed_tokens: int, tokens: int) -> int:
        """The clip of what vLLM would compute of a request in this step."""
        most = self.clipped.get(request.request_id)
        if self.plan is None or most is None or most >= tokens:
            return tokens
        left = request.num_tokens - computed_tokens
        if most and tokens > left:
            return tokens  # a decode, padded with drafts: vLLM wants it whole
        return most

    def may_enter(self, request: VllmRequest) -> bool:
        """Whether a waiting request may get a seat in this step; whoever holds blocks already and
        whoever is in no tier may."""
        return (
            self.plan is None
            or request.request_id in self._entering
            or request.request_id not in self.roster.entries
            or request.num_computed_tokens > 0
        )

    def giving_up(self, request: VllmRequest) -> None:
        """Before its blocks are freed."""
        entry = self.roster.entries.get(request.request_id)
        if entry is None:
            return
        pools = self.plan.unhash_pools if self.plan else frozenset()
        unhash = self.terms is not None and self.terms.tiers[entry.one.tier].pool in pools
        self.view.give_up(entry, unhash=unhash)

    def preempted(self, request: VllmRequest, computed_tokens: int) -> None:
        """By plan or by vLLM itself; it waits again and had computed so much."""
        if self._notes is not None:
            self._notes.preempted(request.request_id, computed_tokens, self.plan)
        entry = self.roster.entries.get(request.request_id)
        if entry is None or self._planner is None:
            return
        one = entry.one
        one.computed_tokens = one.blocks = one.shared_blocks = 0
        one.total_tokens = request.num_tokens
        one.preemptions = request.num_preemptions
        self._planner.preempted(one, self._clock(), self.roster.waiting)
