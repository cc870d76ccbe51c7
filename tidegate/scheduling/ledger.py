"""Charges, corrections and settlements: every account that a request touches, in one place.

Three accounts, each with a currency of its own:

* the tenant's in its tier's round robin: predicted cost at dispatch, in the tier's unit, corrected
  by what the request turns out to cost;
* the tier's reservation and limit: the same, always in tokens;
* service: tokens that the engine was seen to work on, never predicted. It is what the totals
  publish, and the clock of the tiers.

Invariant: once a request has been settled, its tenant was charged exactly what it cost.
"""

from __future__ import annotations

from tidegate.scheduling.contracts import FairnessUnit
from tidegate.scheduling.cost import predicted_output_tokens
from tidegate.scheduling.job import Job
from tidegate.scheduling.request import Usage
from tidegate.scheduling.selection import Selection

_REQUESTS = FairnessUnit.REQUESTS


class Ledger:
    """Books what requests cost."""

    __slots__ = ("_selection", "_tiers")

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._tiers = selection.tiers

    def charge(self, job: Job) -> None:
        """Charge the request about to be dispatched; its tenant still stands in the selection."""
        request, tenant = job.request, job.tenant
        job.tier = tier = tenant.tier
        job.unit = unit = tier.unit
        job.charged_tokens = tokens = request.prompt_tokens + predicted_output_tokens(
            request.max_output_tokens, tenant.output_mean, tier.output_mean
        )
        job.started = False
        job.served_tokens = 0
        ordered = not self._selection.in_arrival_order
        job.grant = self._tiers.dispatch(tier.account, tokens, ordered)
        cost = 1.0 if unit is _REQUESTS else tokens
        job.contended = tier.robin.dispatch(tenant.account, cost, ordered)

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
            self._correct(job, excess)

    def settle(self, job: Job, usage: Usage | None) -> None:
        """Book the end of a request: what the engine reports, else what was seen of it."""
        request = job.request
        if usage is not None:
            tokens = usage.prompt_tokens + usage.output_tokens
            job.tenant.output_mean.add(usage.output_tokens)
            job.tier.output_mean.add(usage.output_tokens)
        elif job.started:
            tokens = request.prompt_tokens + request.output_tokens
        else:
            self.undo(job)
            return
        self._serve(job, tokens - job.served_tokens)
        self._correct(job, tokens - job.charged_tokens)

    def undo(self, job: Job) -> None:
        """As if it had never been dispatched: the engine did no work on it."""
        self._serve(job, -job.served_tokens)
        self._correct(job, -job.charged_tokens)
        if job.unit is _REQUESTS:
            self._adjust(job, -1.0)

    def _correct(self, job: Job, tokens: float) -> None:
        if not tokens:
            return
        job.charged_tokens += tokens
        self._tiers.correct(job.tier.account, tokens, job.grant)
        if job.unit is not _REQUESTS:
            self._adjust(job, tokens)

    def _adjust(self, job: Job, amount: float) -> None:
        """Correct the tenant's account by a cost in the job's unit."""
        tenant = job.tenant
        tier = tenant.tier
        if tier.unit is not job.unit:
            return  # the unit changed under way; all started even then
        if amount > 0:
            tier.robin.charge(tenant.account, amount, not self._selection.in_arrival_order)
        else:
            tier.robin.refund(tenant.account, -amount, job.contended)

    def _serve(self, job: Job, tokens: int) -> None:
        if tokens:
            job.served_tokens += tokens
            job.tenant.service.add(tokens)
            job.tier.service.add(tokens)
            self._tiers.served += tokens
