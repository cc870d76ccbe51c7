"""What each step did, noted when it is scheduled and told when its output is back.

Theory of operation: at ``scheduled`` a step's work is known and its requests still stand where they
stood; at ``returned`` how long it took and which drafts were accepted. Steps in flight (two with
async scheduling) wait in between. A step's time is from when it was scheduled, or the output before
it was back, whichever was later, to its own output: so the times of all steps add up to the time in
which the engine was busy, and an idle engine adds nothing.

Requests are named by their ``tidegate_sequence``; those that carry none are counted only. A step
that computed nothing and preempted nobody is not told.

Bound: O(requests of the step); pools and tiers are summed ``POOLS_PER_SECOND`` times a second.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tidegate.scheduling.contracts import STEP_STATISTICS_VERSION, PreemptionCause
from tidegate.scheduling.kv_room import held_by_pool, held_by_tier, room_by_tier
from tidegate.scheduling.plan_request import StepPlan, StepState
from tidegate.scheduling.step_policy import StepPolicy
from tidegate.vllm_plugin.request_tags import read_tags
from tidegate.vllm_plugin.vllm_types import (
    VllmModelOutput,
    VllmRequest,
    VllmScheduler,
    VllmSchedulerOutput,
)

POOLS_PER_SECOND = 10
_MOST_IN_FLIGHT = 16
"""Steps whose output is awaited; more never is, so the oldest has been lost."""

Note = dict[str, Any]
"""``contracts.StepStatistics`` as JSON has it."""
Planned = tuple[StepPolicy, StepState, StepPlan]


@dataclass(slots=True)
class _Named:
    """A request with a sequence number."""

    sequence: int
    tier: str
    reached: int = 0
    """Most tokens it had computed when it was preempted."""
    caused_by: str = ""


@dataclass(slots=True)
class _InFlight:
    output: VllmSchedulerOutput
    note: Note
    scheduled_at: float
    drafted: list[tuple[str, str, int]]
    """Request, its tier, draft tokens."""


class StepNotes:
    """Of one engine; ``tell`` is given each finished note."""

    def __init__(
        self,
        scheduler: VllmScheduler,
        tell: Callable[[Note], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._scheduler = scheduler
        self._tell = tell
        self._clock = clock
        self._named: dict[str, _Named] = {}
        self._sequences: dict[str, int] = {}
        """The same, for the many that only decode."""
        self._preemptions: list[Note] = []
        self._in_flight: deque[_InFlight] = deque()
        self._steps = 0
        self._last_output_at = 0.0
        self._pools_due = 0.0

    def arrived(self, request: VllmRequest) -> None:
        """It reaches the engine."""
        params = request.sampling_params
        tags = read_tags(params.extra_args) if params is not None else None
        if tags is not None and tags.sequence is not None:
            self._named[request.request_id] = _Named(tags.sequence, tags.tier)
            self._sequences[request.request_id] = tags.sequence

    def ended(self, request: VllmRequest) -> None:
        """It is gone."""
        self._named.pop(request.request_id, None)
        self._sequences.pop(request.request_id, None)

    def preempted(self, name: str, computed_tokens: int, plan: StepPlan | None) -> None:
        """Of the step that comes or is under way; it had computed so much."""
        victim = self._named.get(name)
        if victim is None:
            return
        made_for = plan.preempted_for.get(name) if plan is not None else None
        beneficiary = self._named.get(made_for) if made_for is not None else None
        cause = PreemptionCause.ENGINE
        if made_for is not None and plan is not None:
            enters = any(one.id == made_for for one in plan.admit)
            cause = PreemptionCause.ADMISSION if enters else PreemptionCause.GROWTH
        victim.reached = max(victim.reached, computed_tokens)
        victim.caused_by = beneficiary.tier if beneficiary and made_for != name else ""
        self._preemptions.append(
            {
                "sequence": victim.sequence,
                "cause": cause.value,
                "for_sequence": beneficiary.sequence if beneficiary else None,
                "lost_tokens": computed_tokens,
            }
        )

    def scheduled(
        self, output: VllmSchedulerOutput, planned: Planned | None, waiting: int, **rest: object
    ) -> None:
        """A step was scheduled; ``rest``: the contract's fields that are the caller's."""
        if not output.num_scheduled_tokens and not self._preemptions:
            return
        self._steps += 1
        now = self._clock()
        note: Note = {
            "version": STEP_STATISTICS_VERSION,
            "step": self._steps,
            "planned": planned is not None,
            "waiting": waiting,
            **rest,
        }
        if self._preemptions:
            note["preemptions"], self._preemptions = self._preemptions, []
        self._note_work(note, output)
        if planned is not None:
            if planned[2].vetoed:
                note["vetoed"] = Counter(reason.value for reason in planned[2].vetoed.values())
            if now >= self._pools_due:
                self._pools_due = now + 1 / POOLS_PER_SECOND
                note["pools"], note["tiers"] = _pools(*planned[:2]), _tiers(*planned[:2])
        drafted = [
            (name, named.tier if (named := self._named.get(name)) else "", len(drafts))
            for name, drafts in output.scheduled_spec_decode_tokens.items()
        ]
        if not output.num_scheduled_tokens:
            self._tell(note)
            return
        self._in_flight.append(_InFlight(output, note, now, drafted))
        if len(self._in_flight) > _MOST_IN_FLIGHT:
            self._tell(self._in_flight.popleft().note)

    def _note_work(self, note: Note, output: VllmSchedulerOutput) -> None:
        named, sequences = self._named, self._sequences
        drafted = output.scheduled_spec_decode_tokens
        entering = {new.req_id for new in output.scheduled_new_reqs}
        entering |= output.scheduled_cached_reqs.resumed_req_ids
        decodes: list[int] = []
        decode_tokens: list[int] = []
        prefills: list[Note] = []
        untagged = 0
        for name, tokens in output.num_scheduled_tokens.items():
            if tokens == 1 and name in sequences and name not in entering:
                decodes.append(sequences[name])
                continue
            one = named.get(name)
            if one is None:
                untagged += tokens
            elif name in drafted:
                decode_tokens += [1] * (len(decodes) - len(decode_tokens))
                decodes.append(one.sequence)
                decode_tokens.append(tokens)
            else:
                prefills.append(self._prefill(name, one, tokens, name in entering))
        note["decodes"] = decodes
        if decode_tokens:
            note["decode_tokens"] = decode_tokens + [1] * (len(decodes) - len(decode_tokens))
        if prefills:
            note["prefills"] = prefills
        if untagged:
            note["untagged_tokens"] = untagged

    def _prefill(self, name: str, one: _Named, tokens: int, enters: bool) -> Note:
        before = self._scheduler.requests[name].num_computed_tokens - tokens
        again = max(min(before + tokens, one.reached) - before, 0)
        return {
            "sequence": one.sequence,
            "tokens": tokens,
            "context_tokens": before,
            "reused_tokens": before if enters else 0,
            "recomputed_tokens": again,
            "caused_by": one.caused_by if again else "",
        }

    def returned(self, output: VllmSchedulerOutput, told: VllmModelOutput) -> None:
        """The output of a step is back; those before it will not come any more."""
        if not any(step.output is output for step in self._in_flight):
            return
        now = self._clock()
        while True:
            step = self._in_flight.popleft()
            if step.output is output:
                break
            self._tell(step.note)
        step.note["seconds"] = now - max(step.scheduled_at, self._last_output_at)
        self._last_output_at = now
        if step.drafted:
            step.note["drafts"] = self._drafts(step.drafted, told)
        self._tell(step.note)

    def _drafts(self, drafted: Iterable[tuple[str, str, int]], told: VllmModelOutput) -> list[Note]:
        """By tier; a decode's output is what was accepted and one token more. Of who has gone
        meanwhile, vLLM throws it away."""
        verified: Counter[str] = Counter()
        accepted: Counter[str] = Counter()
        for name, tier, tokens in drafted:
            index = told.req_id_to_index.get(name)
            if index is None or name not in self._scheduler.requests:
                continue
            if sampled := len(told.sampled_token_ids[index]):
                verified[tier] += tokens
                accepted[tier] += sampled - 1
        return [
            {"tier": tier, "drafted_tokens": tokens, "accepted_tokens": accepted[tier]}
            for tier, tokens in verified.items()
        ]


def _pools(terms: StepPolicy, state: StepState) -> list[Note]:
    return [
        {
            "name": pool.name,
            "nominal_blocks": pool.nominal_blocks,
            "held_blocks": held,
            "cached_blocks": cached,
        }
        for pool, held, cached in zip(
            terms.pools, held_by_pool(terms, state), state.cached_blocks_by_pool, strict=True
        )
    ]


def _tiers(terms: StepPolicy, state: StepState) -> list[Note]:
    held, rooms = held_by_tier(terms, state), room_by_tier(terms, state)
    return [
        {"name": tier.name, "held_blocks": blocks, "room_blocks": room}
        for tier, blocks, room in zip(terms.tiers, held, rooms, strict=True)
    ]
