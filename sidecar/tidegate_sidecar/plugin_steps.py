"""The engine's steps as its plug-in tells them, merged into bill, gates and figures.

Theory of operation: requests are named by the sequence number that they were dispatched with. A
step becomes one report for the scheduler (:class:`~tidegate_sidecar.token_gaps.StepReports`): what
each request computed in it, what of that it had computed before, and the tier that made it do so
again. It comes when the step's output does, a little before the tokens. While steps are told, those
that the token gaps show are not reported; when streams show many and none is told, they are again.

What is lost is not made up for: a lost step is charged to nobody, and the requests in it are taken
to have decoded in a number of steps that is not known. A step number that does not rise is an
engine's restart. Work of requests that have ended, or are nobody's, is charged to nobody.

Bound: O(requests of the step).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import repeat
from typing import Protocol

from tidegate.scheduling.contracts import (
    PreemptionCause,
    StepPool,
    StepPrefill,
    StepStatistics,
)
from tidegate.scheduling.engine_time import RequestStep
from tidegate.scheduling.kv_room import held_ratio
from tidegate.scheduling.prefill_step import prefill_step
from tidegate.scheduling.step_time_fit import StepWork, decode_work
from tidegate_sidecar.ticket import Ticket
from tidegate_sidecar.token_gaps import StepReports

NOBODY = ""
"""In the place of a request's id."""
PREFILL_BOUNDS_TOKENS = (16, 64, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384)
_RECENT_DRAFTS = 8_192
"""Draft tokens over which acceptance is taken: from so many on, those before count half."""


class StepsHost(StepReports, Protocol):
    """The dispatcher, as this module needs it."""

    def steps_are_told(self) -> None:
        """The token gaps need not report steps."""

    def engine_started(self, ticket: Ticket) -> None:
        """The prompt of one that shows no tokens is computed."""

    def kv_held(self, ratios: Mapping[str, float]) -> None:
        """What each tier holds of what it could hold, 0..1."""

    def preempted(self, tenant: str, lost_tokens: int) -> None:
        """The engine took a request of the tenant off; so many tokens are computed again."""


class StepFigures:
    """What the plug-in told so far. Totals only rise, whatever restarts."""

    def __init__(self) -> None:
        self.steps = 0
        self.lost = 0
        """Steps that did not reach us."""
        self.unplanned = 0
        """Steps that were vLLM's own."""
        self.failures = 0
        self.plan_seconds = 0.0
        self.preemptions = dict.fromkeys(PreemptionCause, 0)
        self.recomputed_tokens = 0
        self.prefill_counts = [0] * (len(PREFILL_BOUNDS_TOKENS) + 1)
        """Steps by prefill tokens, at most each bound and above the last."""
        self.prefill_tokens = 0
        self.drafted: dict[str, float] = {}
        """Recent draft tokens, by tier."""
        self.accepted: dict[str, float] = {}
        self.drafted_total: dict[str, int] = {}
        """All draft tokens, by tier."""
        self.accepted_total: dict[str, int] = {}
        self.pools: tuple[StepPool, ...] = ()
        self.held_by_tier: dict[str, int] = {}
        """KV blocks."""

    def acceptance(self, tier: str) -> float | None:
        """Part of a tier's recent draft tokens that were accepted; None: it had none."""
        drafted = self.drafted.get(tier)
        return self.accepted.get(tier, 0.0) / drafted if drafted else None

    def add(self, told: StepStatistics) -> None:
        """Count one step."""
        self.steps += 1
        self.unplanned += not told.planned
        self.plan_seconds += told.plan_seconds
        for victim in told.preemptions:
            self.preemptions[victim.cause] += 1
        prefilled = sum([prefill.tokens for prefill in told.prefills])
        self.recomputed_tokens += sum([one.recomputed_tokens for one in told.prefills])
        self.prefill_tokens += prefilled
        place = sum([prefilled > bound for bound in PREFILL_BOUNDS_TOKENS])
        self.prefill_counts[place] += 1
        for drafts in told.drafts:
            for totals, more in (
                (self.drafted_total, drafts.drafted_tokens),
                (self.accepted_total, drafts.accepted_tokens),
            ):
                totals[drafts.tier] = totals.get(drafts.tier, 0) + more
            keep = 0.5 if self.drafted.get(drafts.tier, 0.0) >= _RECENT_DRAFTS else 1.0
            for sums, tokens in (
                (self.drafted, drafts.drafted_tokens),
                (self.accepted, drafts.accepted_tokens),
            ):
                sums[drafts.tier] = sums.get(drafts.tier, 0.0) * keep + tokens
        if told.pools:
            self.pools = told.pools
            self.held_by_tier = {tier.name: tier.held_blocks for tier in told.tiers}


class _Run:
    """A request in the engine."""

    __slots__ = ("decode_steps", "lost_before", "preempted_at", "preempted_seconds", "ticket")

    def __init__(self, ticket: Ticket, lost_before: int) -> None:
        self.ticket = ticket
        self.lost_before = lost_before
        self.decode_steps = 0
        self.preempted_at: float | None = None
        self.preempted_seconds = 0.0


class PluginSteps:
    """Of one engine."""

    def __init__(self, host: StepsHost, now: Callable[[], float]) -> None:
        self._host = host
        self._now = now
        self.figures = StepFigures()
        self._runs: dict[int, _Run] = {}
        self._last_step: int | None = None
        self._last_failures = 0

    def pools(self) -> tuple[StepPool, ...]:
        """The KV pools as last told; an engine without requests tells nothing and holds nothing."""
        if self._runs:
            return self.figures.pools
        return tuple(replace(pool, held_blocks=0) for pool in self.figures.pools)

    def held_by_tier(self) -> dict[str, int]:
        """KV blocks of each tier's requests, likewise; empty until they are told."""
        held = self.figures.held_by_tier
        return held if self._runs else dict.fromkeys(held, 0)

    def dispatched(self, ticket: Ticket) -> None:
        """It goes to the engine, with its sequence number."""
        assert ticket.request.sequence is not None
        self._runs[ticket.request.sequence] = _Run(ticket, self.figures.lost)

    def ended(self, ticket: Ticket) -> None:
        """It is out of flight, however; its usage knows what its steps told."""
        sequence = ticket.request.sequence
        run = self._runs.pop(sequence, None) if sequence is not None else None
        if run is None or ticket.usage is None:
            return
        known = run.decode_steps and self.figures.lost == run.lost_before
        ticket.usage = ticket.usage._replace(
            decode_steps=run.decode_steps if known else None,
            preempted_seconds=run.preempted_seconds,
        )

    def take(self, told: StepStatistics) -> None:
        """The engine told of a step."""
        figures, last = self.figures, self._last_step
        if last is not None and told.step > last:
            figures.lost += told.step - last - 1
            figures.failures += max(told.failures_total - self._last_failures, 0)
        else:
            figures.failures += told.failures_total
        self._last_step, self._last_failures = told.step, told.failures_total
        figures.add(told)
        self._host.steps_are_told()
        if told.tiers:
            self._host.kv_held(
                {tier.name: held_ratio(tier.held_blocks, tier.room_blocks) for tier in told.tiers}
            )
        now = self._now()
        for victim in told.preemptions:
            if (run := self._runs.get(victim.sequence)) is None:
                continue
            self._host.preempted(run.ticket.request.tenant, victim.lost_tokens)
            if run.preempted_at is None:
                run.preempted_at = now
        rows = [*self._decodes(told, now), *map(self._prefill, told.prefills)]
        if told.untagged_tokens:
            rows.append(RequestStep(NOBODY, StepWork(told.untagged_tokens)))
        self._host.stepped(told.seconds, rows)

    def _decodes(self, told: StepStatistics, now: float) -> Iterator[RequestStep]:
        tokens_of = told.decode_tokens or repeat(1)
        for sequence, tokens in zip(told.decodes, tokens_of, strict=False):
            run = self._runs.get(sequence)
            if run is None:
                yield RequestStep(NOBODY, decode_work(0, tokens))
                continue
            ticket, request = run.ticket, run.ticket.request
            run.decode_steps += 1
            if run.preempted_at is not None:
                run.preempted_seconds += now - run.preempted_at
                run.preempted_at = None
            if ticket.opaque:
                self._host.engine_started(ticket)
            context = (request.prompt_tokens + ticket.output_tokens) // request.sequences
            yield RequestStep(request.id, decode_work(context, tokens))

    def _prefill(self, told: StepPrefill) -> RequestStep:
        run = self._runs.get(told.sequence)
        name = run.ticket.request.id if run is not None else NOBODY
        again = min(told.recomputed_tokens, told.tokens)
        cause = told.caused_by or None
        return prefill_step(name, told.tokens, told.context_tokens, again, cause)
