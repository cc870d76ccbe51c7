"""What a request may expect: its wait, its first token, its end; kept up to date by events.

One :class:`Outlook` follows a scheduler: what waits in each tier (``tier_loads``), at what rate the
engine takes it, which prefills are ahead. From that come the forecasts of ``waiting_time`` (for the
throttle, and for who asks about one that waits) and of ``finish_time`` (at the dispatch). Costs are
in the currency of the tiers: EngineTime where the host reports steps, else tokens.

Bound: O(1) an event, O(tiers) a forecast. Invariant: what entered a sum leaves it at the same cost.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.scheduling import finish_time, waiting_time
from tidegate.scheduling.contracts import BetweenTiers, Policy
from tidegate.scheduling.cost import exchange_rate, expected_cost, prefill_ratio
from tidegate.scheduling.engine_time import EnginePace
from tidegate.scheduling.finish_time import FinishEstimate
from tidegate.scheduling.job import Job
from tidegate.scheduling.load_rates import ServiceRate
from tidegate.scheduling.request import Forecast, Request, Usage
from tidegate.scheduling.state import TenantState
from tidegate.scheduling.tenant_averages import (
    DEADLINE_PERCENT,
    expected_cached_tokens,
    expected_tokens_per_step,
    output_quantile_tokens,
)
from tidegate.scheduling.tier_loads import TierLoads
from tidegate.scheduling.waiting_time import WaitForecast


class Outlook:
    """Of one engine."""

    __slots__ = ("_loads", "_pace", "_rate", "_unstarted_tokens", "_weighted")

    def __init__(self, pace: EnginePace | None) -> None:
        self._pace = pace
        self._rate = ServiceRate()
        self._loads = TierLoads()
        self._weighted = False
        self._unstarted_tokens = 0
        """Prompts dispatched and not prefilled yet."""

    def begin_anew(
        self, policy: Policy, tenants: Iterable[TenantState], jobs: Iterable[Job]
    ) -> None:
        """Some first steps were measured: costs until then were guesses of another scale, and a
        rate or a room measured in them would say for a hundred requests that nobody waits."""
        self._rate = ServiceRate()
        self._loads.forget_offered()
        self.apply_policy(policy, tenants, jobs)

    def apply_policy(
        self, policy: Policy, tenants: Iterable[TenantState], jobs: Iterable[Job]
    ) -> None:
        """New terms, for all that there is at present; O(n)."""
        self._weighted = policy.between_tiers is BetweenTiers.WEIGHTED
        self._loads.apply_policy(policy.tiers, tenants)
        self._unstarted_tokens = 0
        in_flight = 0.0
        for job in jobs:
            job.expected_cost = expected_cost(self._pace, job.request, job.tenant)
            if job.waiting:
                self._loads.add(job)
                continue
            in_flight += job.expected_cost
            if not job.started:
                self._unstarted_tokens += job.request.prompt_tokens
        self._rate.restart(in_flight)

    def starts_in_seconds(self, job: Job, before: Iterable[Job], now: float) -> float | None:
        """Until the dispatch of one that waits behind ``before`` of its own tenant; None: no rate
        was measured yet. May be infinite."""
        if self._rate.per_second(now) is None:
            return None
        own = sum([other.expected_cost for other in before])
        return self.forecast_wait(job.request, job.tenant, now, own).seconds()

    def finishes_in_seconds(self, job: Job, starts_in_seconds: float) -> float | None:
        """Until the end of one that waits, by when it starts; None: no step was measured yet."""
        pace = self._pace
        if pace is None or not pace.is_measured:
            return None
        return self._estimate(pace, job.request, job.tenant, starts_in_seconds).finish_seconds

    def forecast_wait(
        self, request: Request, tenant: TenantState, now: float, own: float | None = None
    ) -> WaitForecast:
        """Until the dispatch of a request behind ``own`` cost of its tenant; unset: sent now."""
        mine, others = self._loads.around(tenant, now)
        weight = tenant.account.weight
        joins = 0 if tenant.queue.size + tenant.in_flight else weight
        mine.active_weight += joins
        rate = self._rate.per_second(now)
        forecast = waiting_time.predict(
            tenant.queued_cost if own is None else own,
            weight,
            mine,
            others,
            rate,
            self._weighted,
            self._rate.room,
            prefill_ratio(self._pace, request, tenant),
            self._debt(request, tenant),
        )
        mine.active_weight -= joins
        return forecast

    def first_token_seconds(self, request: Request, tenant: TenantState) -> float:
        """From its dispatch to its first token; 0 where no step was measured yet."""
        pace = self._pace
        if pace is None or not pace.is_measured:
            return 0.0
        mine, tiers = tenant.averages, tenant.tier.averages
        cached = expected_cached_tokens(request.prompt_tokens, mine, tiers)
        return pace.first_token_seconds(request.prompt_tokens, cached, self._unstarted_tokens)

    def queued(self, job: Job, now: float, anew: bool = True) -> None:
        """A request entered its queue; ``anew`` False: it came back."""
        tenant, request = job.tenant, job.request
        if (pace := self._pace) is not None:
            mine, tiers = tenant.averages, tenant.tier.averages
            request.expected_cached_tokens = expected_cached_tokens(
                request.prompt_tokens, mine, tiers
            )
            request.expected_output_tokens = output_quantile_tokens(
                DEADLINE_PERCENT, request.max_output_tokens, mine, tiers
            )
            if anew and pace.is_measured:
                request.forecast = Forecast()
        job.expected_cost = expected_cost(self._pace, request, tenant)
        self._loads.entered(job)
        self._rate.waiting(now)
        if anew:
            self._loads.sent(job, now)

    def dropped(self, job: Job, others_wait: bool) -> None:
        """A request left its queue, but not for the engine."""
        self._loads.remove(job)
        self._loads.left(job.tenant)
        if not others_wait:
            self._rate.idle()

    def dispatched(self, job: Job, others_wait: bool, now: float) -> None:
        """A request went to the engine."""
        request = job.request
        self._loads.remove(job)
        self._rate.dispatched(job.expected_cost, others_wait, now)
        if (forecast := request.forecast) is not None and self._pace is not None:
            forecast.made(self._estimate(self._pace, request, job.tenant, 0.0), now)
        self._unstarted_tokens += request.prompt_tokens

    def started(self, job: Job, now: float) -> None:
        """Its prefill is done, or given up."""
        self._unstarted_tokens -= job.request.prompt_tokens
        if job.request.forecast is not None:
            job.request.forecast.first_token = now

    def landed(self, job: Job, usage: Usage | None, now: float) -> None:
        """It is out of flight; ``usage`` None: it did not run to its end."""
        request = job.request
        if not job.started:
            self._unstarted_tokens -= request.prompt_tokens
        self._rate.ended(job.expected_cost, served=job.started or usage is not None)
        self._loads.left(job.tenant)
        if usage is None:
            return
        for averages in (job.tenant.averages, job.tier.averages):
            averages.ended(
                usage.prompt_tokens, usage.output_tokens, usage.cached_tokens, usage.decode_steps
            )
        if request.forecast is not None and request.dispatched is not None:
            request.forecast.judge(request.dispatched, now, usage)

    def _estimate(
        self, pace: EnginePace, request: Request, tenant: TenantState, wait_seconds: float
    ) -> FinishEstimate:
        return finish_time.estimate(
            pace,
            request.prompt_tokens,
            request.expected_output_tokens,
            cached_tokens=request.expected_cached_tokens,
            tokens_per_step=expected_tokens_per_step(tenant.averages, tenant.tier.averages),
            prefill_ahead_tokens=self._unstarted_tokens,
            wait_seconds=wait_seconds,
        )

    def _debt(self, request: Request, tenant: TenantState) -> float:
        """What the tenant owes its tier's round robin, in the currency of the tiers."""
        debt = tenant.tier.robin.debt(tenant.account)
        return debt * exchange_rate(self._pace, request, tenant) if debt > 0 else 0.0
