"""Charges, corrections and settlements: every account that a request touches, in one place.

Three accounts, each with a currency of its own:

* the tenant's in its tier's round robin: predicted cost at dispatch, in the tier's unit, corrected
  by what the request turns out to cost;
* the tier's reservation, limit and share: EngineTime in milliseconds where the host reports the
  engine's steps, else tokens; charged and corrected likewise;
* service: tokens that the engine was seen to work on, never predicted. It is what the totals
  publish.

The clock of the tiers counts the work seen, in their currency: busy milliseconds or tokens.

Bound: O(log n) a request's event, O(requests of the step) a step.

Invariant: a settled request has charged its tenant and its tier exactly what it cost (a tier in
addition what it made others compute again).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidegate.scheduling.contracts import FairnessUnit
from tidegate.scheduling.cost import engine_ms, expected_output_tokens
from tidegate.scheduling.engine_time import EnginePace, RequestStep
from tidegate.scheduling.job import Job
from tidegate.scheduling.request import Usage
from tidegate.scheduling.selection import Selection
from tidegate.scheduling.state import TierState

_REQUESTS = FairnessUnit.REQUESTS
_TOKENS = FairnessUnit.TOKENS
_ENGINE_TIME = FairnessUnit.ENGINE_TIME


class Ledger:
    """Books what requests cost; ``pace``: of the engine, where the host reports its steps."""

    __slots__ = ("_pace", "_selection", "_tiers", "contended")

    def __init__(self, selection: Selection, pace: EnginePace | None) -> None:
        self._selection = selection
        self._tiers = selection.tiers
        self._pace = pace
        self.contended: dict[tuple[str, FairnessUnit], float] | None = None
        """Given to each tenant while another of its tier waited; unset: nobody asks."""

    def charge(self, job: Job) -> None:
        """Charge the request about to be dispatched; its tenant still stands in the selection."""
        request, tenant = job.request, job.tenant
        job.tier = tier = tenant.tier
        job.unit = unit = tier.unit
        job.started = False
        job.served_tokens = 0
        output_tokens = expected_output_tokens(request, tenant)
        job.charged_tokens = cost = request.prompt_tokens + output_tokens
        ordered = not self._selection.in_arrival_order
        if self._pace is not None:
            cost = engine_ms(self._pace, request, tenant, output_tokens)
            job.charged_ms = cost
            job.used_ms = 0.0
        job.grant = self._tiers.dispatch(tier.account, cost, ordered)
        if unit is _REQUESTS:
            cost = 1.0
        elif unit is _TOKENS:
            cost = job.charged_tokens
        job.contended = tier.robin.dispatch(tenant.account, cost, ordered)
        if job.contended and self.contended is not None:
            self._note_contended(job, cost)

    def progress(self, job: Job, output_tokens: int) -> None:
        """Book what the engine did, and charge on what outgrows the prediction."""
        request = job.request
        request.output_tokens += output_tokens
        served = output_tokens
        if not job.started:
            job.started = True
            served += request.prompt_tokens
        self._serve(job, served)
        excess = request.prompt_tokens + request.output_tokens - job.charged_tokens
        if excess > 0:
            self._correct_tokens(job, excess)

    def step(
        self,
        seconds: float,
        rows: Sequence[RequestStep],
        jobs: Mapping[str, Job],
        landed: Mapping[str, Job],
        tiers: Mapping[str, TierState],
        learn: bool,
    ) -> None:
        """Book a step of the engine: its time, split over those that were in it.

        ``landed``: those that have ended since the last step, and were settled without this one.
        """
        assert self._pace is not None
        charges = self._pace.observe_rows(rows, seconds, learn)
        self._tiers.served += 1e3 * seconds
        for request_id, used_seconds in charges.by_request.items():
            job = jobs.get(request_id) or landed.get(request_id)
            if job is None or job.waiting:
                continue
            used_ms = 1e3 * used_seconds
            job.used_ms += used_ms
            job.tenant.engine_ms += used_ms
            job.tier.engine_ms += used_ms
            if job.used_ms > job.charged_ms:
                self._correct_ms(job, job.used_ms - job.charged_ms)
        for name, caused_seconds in charges.by_cause.items():
            if (tier := tiers.get(name)) is not None:
                self.charge_tier(tier, 1e3 * caused_seconds)

    def charge_tier(self, tier: TierState, engine_ms: float) -> None:
        """Charge a tier what it made others compute again."""
        tier.engine_ms += engine_ms
        self._tiers.charge(tier.account, engine_ms)

    def settle(self, job: Job, usage: Usage | None) -> int:
        """Book the end of a request: what the engine reports, else what was seen of it; tokens."""
        request = job.request
        if usage is not None:
            tokens = usage.prompt_tokens + usage.output_tokens
            job.tenant.output_mean.add(usage.output_tokens)
            job.tier.output_mean.add(usage.output_tokens)
        elif job.started:
            tokens = request.prompt_tokens + request.output_tokens
        else:
            self.undo(job)
            return 0
        request.billed_tokens = tokens
        self._serve(job, tokens - job.served_tokens)
        self._correct_tokens(job, tokens - job.charged_tokens)
        if self._pace is not None:
            request.engine_ms = job.used_ms
            self._correct_ms(job, job.used_ms - job.charged_ms)
        return tokens

    def undo(self, job: Job, cause: TierState | None = None) -> None:
        """As if it had never been dispatched: the engine did no work on it, or did it for nothing
        because of a tier, which pays for it."""
        self._serve(job, -job.served_tokens)
        self._correct_tokens(job, -job.charged_tokens)
        if self._pace is not None:
            owed_ms = job.used_ms
            if cause is not None:
                self._tiers.charge(cause.account, owed_ms)
                owed_ms = 0.0
            self._correct_ms(job, owed_ms - job.charged_ms)
        if job.unit is _REQUESTS:
            self._adjust(job, -1.0)

    def _correct_tokens(self, job: Job, tokens: float) -> None:
        if not tokens:
            return
        job.charged_tokens += tokens
        if self._pace is None:
            self._tiers.correct(job.tier.account, tokens, job.grant)
        if job.unit is _TOKENS:
            self._adjust(job, tokens)

    def _correct_ms(self, job: Job, engine_ms: float) -> None:
        job.charged_ms += engine_ms
        self._tiers.correct(job.tier.account, engine_ms, job.grant)
        if job.unit is _ENGINE_TIME:
            self._adjust(job, engine_ms)

    def _adjust(self, job: Job, amount: float) -> None:
        """Correct the tenant's account by a cost in the job's unit."""
        if job.contended and self.contended is not None:
            self._note_contended(job, amount)
        tenant = job.tenant
        tier = tenant.tier
        if tier.unit is not job.unit:
            return  # the unit changed under way; all started even then
        if amount > 0:
            tier.robin.charge(tenant.account, amount, not self._selection.in_arrival_order)
        else:
            tier.robin.refund(tenant.account, -amount, job.contended)

    def _note_contended(self, job: Job, cost: float) -> None:
        assert self.contended is not None
        key = job.tenant.name, job.unit
        self.contended[key] = self.contended.get(key, 0.0) + cost

    def _serve(self, job: Job, tokens: int) -> None:
        if tokens:
            job.served_tokens += tokens
            job.tenant.service.add(tokens)
            job.tier.service.add(tokens)
            if self._pace is None:
                self._tiers.served += tokens
