"""What stands between a request and its tenant's queue: prompt limit, throttle, rate limits.

In this order: a prompt that is too large is told so whatever the load; what the backlog would keep
from its target is refused before it takes anything of its limits; the limits come last, because
they reserve. All is decided in one call without a pause, so that requests side by side cannot all
see the same room.

In Shadow nothing is refused, cut or put last; the verdict is noted on the request alone.

A request in parts is judged as one: by its longest part (prompt limit), its first (throttle), and
all of them together (rate limits).

Bound: O(limits of the tenant + tiers) a request.

Invariant: each reservation is settled or released exactly once, when its request ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, isfinite

from tidegate.scheduling.contracts import Endpoint, Lateness, OnExceed, Policy, RateLimit
from tidegate.scheduling.engine_time import EnginePace
from tidegate.scheduling.limit_window import Clocks
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.outlook import Outlook
from tidegate.scheduling.prompt_limit import judge
from tidegate.scheduling.rate_limit import RateLimiter, Reservation, Room
from tidegate.scheduling.request import Refusal, Request
from tidegate.scheduling.state import TenantState
from tidegate.scheduling.tenant_averages import RESERVATION_PERCENT, output_quantile_tokens


def asks_for_admission(policy: Policy) -> bool:
    """Whether anything in it is decided by what a request may expect, or uses up a limit."""
    return any(
        tier.prompt_limit or tier.slo_objectives or tier.rate_limits for tier in policy.tiers
    ) or any(tenant.rate_limits for tenant in policy.tenants)


class Admission:
    """Of one scheduler."""

    __slots__ = ("_clocks", "_outlook", "_pace", "_reservations", "enforced", "limiter")

    def __init__(self, outlook: Outlook, pace: EnginePace) -> None:
        self._outlook = outlook
        self._pace = pace
        self._clocks: Clocks | None = None
        """When a limit was last asked."""
        self._reservations: dict[str, Reservation] = {}
        self.limiter = RateLimiter()
        self.enforced = True
        """False: in Shadow."""

    def refusal(
        self, request: Request, tenant: TenantState, now: float, utc: float
    ) -> Refusal | None:
        """Why it may not enter; None: it may, and has taken what it is likely to use."""
        before = self._above_prompt_limit(request, tenant) or self._throttled(request, tenant, now)
        if before is None:
            return self._limited(request, tenant, Clocks(now, utc)) if tenant.rate_limits else None
        if isinstance(request.limits_verdict, Reservation):
            request.limits_verdict.release()
        return before

    def progressed(self, request: Request) -> None:
        """It has used more."""
        if (reservation := self._reservations.get(request.id)) is not None:
            reservation.top_up(request.prompt_tokens + request.output_tokens)

    def ended(self, request: Request, tokens: int) -> None:
        """It has used so many tokens in all; 0: the engine did nothing for it."""
        if (whole := request.whole) is not None:
            whole.billed_tokens += tokens
            whole.parts_ended += 1
            if whole.parts_ended < len(whole.parts):
                return
            request, tokens = whole, whole.billed_tokens
        if (reservation := self._reservations.pop(request.id, None)) is not None:
            if tokens:
                reservation.settle(tokens)
            else:
                reservation.release()

    def limits_of(self, request: Request, tenant: TenantState) -> tuple[RateLimit, ...]:
        """Those of its tenant's that count it."""
        endpoint, model = request.endpoint, request.model
        return tuple([limit for limit in tenant.rate_limits if limit.counts(endpoint, model)])

    def accepted_prompt_tokens(self, request: Request, tenant: TenantState) -> int | None:
        """What the prompt limit leaves of its prompt; None: it rejects it."""
        limit = tenant.tier.policy.prompt_limit if self.enforced else None
        verdict = judge(limit, _longest_tokens(request), self._pace)
        if verdict.exceeded is OnExceed.REJECT:
            return None
        if verdict.exceeded is not OnExceed.TRUNCATE:
            return request.prompt_tokens
        return sum([min(part.prompt_tokens, verdict.most_tokens) for part in _served(request)])

    def demand_tokens(self, request: Request, tenant: TenantState, prompt_tokens: int) -> int:
        """What its limits are asked for: its prompt, and the output that it is likely to have."""
        return prompt_tokens + output_quantile_tokens(
            RESERVATION_PERCENT, request.max_output_tokens, tenant.averages, tenant.tier.averages
        )

    def room(
        self, tenant: TenantState, endpoint: Endpoint | None, model: str | None, clocks: Clocks
    ) -> tuple[Room | None, Room | None]:
        """What is left of those of its limits that count such a request; ``RateLimiter.room``."""
        limits = [limit for limit in tenant.rate_limits if limit.counts(endpoint, model)]
        return self.limiter.room(tenant.name, limits, clocks) if limits else (None, None)

    @property
    def holds_any(self) -> bool:
        """Whether any reservation waits for its end."""
        return bool(self._reservations)

    def forget_unused(self, tenants: Iterable[TenantState], now: float) -> None:
        """These are all; counters of no limit of theirs go once nothing counts in them; O(n)."""
        if (last := self._clocks) is None:
            return
        in_force = {
            (tenant.name, limit.name, limit.per)
            for tenant in tenants
            for limit in tenant.rate_limits
        }
        self.limiter.forget_unused(Clocks(now, last.utc + now - last.now), in_force)

    def _above_prompt_limit(self, request: Request, tenant: TenantState) -> Refusal | None:
        limit = tenant.tier.policy.prompt_limit
        if limit is None:
            return None
        verdict = judge(limit, _longest_tokens(request), self._pace)
        if verdict.exceeded is None:
            return None
        if verdict.exceeded is OnExceed.REJECT:
            return Refusal(Outcome.PROMPT_TOO_LONG)
        if not self.enforced:
            return None
        served = _served(request)
        for part in served:
            if verdict.exceeded is not OnExceed.TRUNCATE:
                part.best_effort = True
            elif part.prompt_tokens > verdict.most_tokens:
                part.truncate_to_tokens = part.prompt_tokens = verdict.most_tokens
        request.prompt_tokens = sum([part.prompt_tokens for part in served])
        return None

    def _throttled(self, request: Request, tenant: TenantState, now: float) -> Refusal | None:
        target = tenant.tier.first_token_target_seconds
        if request.deadline is not None:
            target = min(target, request.deadline - now)
        if target == inf:
            return None
        first = _served(request)[0]
        forecast = self._outlook.forecast_wait(first, tenant, now)
        first_token = self._outlook.first_token_seconds(first, tenant)
        seconds = tenant.throttle.refusal_seconds(forecast, first_token, target)
        if seconds is None:
            return None
        wait = forecast.seconds()
        lateness = Lateness(wait if isfinite(wait) else None, first_token, target)
        return Refusal(Outcome.THROTTLED, seconds, lateness=lateness)

    def _limited(self, request: Request, tenant: TenantState, clocks: Clocks) -> Refusal | None:
        limits = self.limits_of(request, tenant)
        if not limits:
            return None
        self._clocks = clocks
        verdict = request.limits_verdict
        if verdict is None:
            tokens = self.demand_tokens(request, tenant, request.prompt_tokens)
            verdict = self.limiter.reserve(tenant.name, limits, tokens, clocks)
        if isinstance(verdict, Reservation):
            self._reservations[request.id] = verdict
            return None
        return Refusal(verdict.outcome, verdict.retry_after_seconds, verdict.limit)


def _served(request: Request) -> tuple[Request, ...]:
    """What the engine gets of it."""
    return request.parts or (request,)


def _longest_tokens(request: Request) -> int:
    """What the prompt limit is about: a prompt, or the longest part of many."""
    return max([part.prompt_tokens for part in _served(request)])
