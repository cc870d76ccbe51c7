"""The engine's requests as the step planner sees them.

Theory of operation: every request that carries tags of a tier in the policy has one
``PlanRequest`` for its life. Those that wait stand in their tier's lane, in rising sequence; all
others that wait (no tags, an unknown tier, pooling) are kept apart in the order of vLLM's queue.
Sequence numbers are the sidecar's; a prompt list or ``n`` makes several engine requests of one
number, so the order of arrival decides between equals.

Bound: O(log waiting) an event. ``rebuild`` makes everything anew from vLLM's own lists, after a
policy change or a failure, so no mistake here outlives a step.

Invariants: a waiting request is in exactly one lane or among the others; lanes are in order.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from tidegate.scheduling.plan_request import PlanRequest
from tidegate.scheduling.step_policy import StepPolicy
from tidegate.vllm_plugin.request_tags import RequestTags, read_tags
from tidegate.vllm_plugin.vllm_types import VllmRequest, VllmScheduler

_NUMBER_BITS = 48


@dataclass(slots=True, eq=False)
class Entry:
    """One request of a tier in the policy."""

    request: VllmRequest
    one: PlanRequest
    tier: str


class Roster:
    """All requests of one engine."""

    def __init__(self) -> None:
        self._terms: StepPolicy | None = None
        self._tiers: dict[str, int] = {}
        self._arrived = 0
        self._last_sequence = 0
        self.entries: dict[str, Entry] = {}
        self.lanes: list[list[PlanRequest]] = []
        """By tier: those that wait."""
        self.others: list[VllmRequest] = []
        """Those that wait and are left alone."""

    def rebuild(self, terms: StepPolicy | None, scheduler: VllmScheduler) -> None:
        """Everything anew, under these terms (None: nobody is in a tier)."""
        before = self.entries
        self._terms = terms
        self._tiers = {tier.name: i for i, tier in enumerate(terms.tiers)} if terms else {}
        self.entries = {}
        self.lanes = [[] for _ in self._tiers]
        self.others = []
        for request in scheduler.requests.values():
            self.arrived(request)
            entry, old = self.entries.get(request.request_id), before.get(request.request_id)
            if entry is not None and old is not None:
                entry.one.sequence = old.one.sequence
                entry.one.not_before = old.one.not_before
        for request in scheduler.waiting:
            self.waits(request)

    def arrived(self, request: VllmRequest) -> None:
        """It reaches the engine; it does not wait yet."""
        params = request.sampling_params
        tags = read_tags(params.extra_args) if params is not None else None
        if tags is None or tags.tier not in self._tiers:
            return
        self.entries[request.request_id] = Entry(request, self._plan(request, tags), tags.tier)

    def _plan(self, request: VllmRequest, tags: RequestTags) -> PlanRequest:
        self._arrived += 1
        sequence = self._last_sequence if tags.sequence is None else tags.sequence
        self._last_sequence = max(self._last_sequence, sequence)
        return PlanRequest(
            id=request.request_id,
            tier=self._tiers[tags.tier],
            tenant=tags.tenant,
            sequence=(sequence << _NUMBER_BITS) + self._arrived,
            prompt_tokens=request.num_prompt_tokens,
            max_output_tokens=request.max_tokens,
            expected_output_tokens=tags.expected_output_tokens,
            weight=tags.weight,
            total_tokens=request.num_tokens,
            preemptions=request.num_preemptions,
        )

    def waits(self, request: VllmRequest, first: bool = False) -> None:
        """It joins the waiting queue; ``first``: at its front, where the queue's order counts."""
        entry = self.entries.get(request.request_id)
        if entry is not None:
            insort(self.lanes[entry.one.tier], entry.one, key=_sequence)
        elif first:
            self.others.insert(0, request)
        else:
            self.others.append(request)

    def waits_no_more(self, request: VllmRequest) -> None:
        """It left the waiting queue."""
        entry = self.entries.get(request.request_id)
        if entry is not None:
            self._leave_lane(entry.one)
        elif request in self.others:
            self.others.remove(request)

    def _leave_lane(self, one: PlanRequest) -> None:
        lane = self.lanes[one.tier]
        index = bisect_left(lane, one.sequence, key=_sequence)
        if index < len(lane) and lane[index] is one:
            del lane[index]

    def ended(self, request: VllmRequest) -> None:
        """It is gone. It may wait still: preempted, it ends by a token of a step in flight, and
        vLLM takes it out of its queue only later."""
        entry = self.entries.pop(request.request_id, None)
        if entry is not None:
            self._leave_lane(entry.one)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(map(len, self.lanes)) + len(self.others)


def _sequence(one: PlanRequest) -> int:
    return one.sequence
