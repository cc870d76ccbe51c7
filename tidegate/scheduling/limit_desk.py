"""What a host may ask about its tenants' rate limits, beside submitting.

A host whose limits are counted together with other pods' asks :meth:`LimitDesk.demand` what a
request would take, has that reserved where all count, and submits it with the verdict
(``Request.limits_verdict``); what it hears of the shared counts it tells ``limiter.observe``, so
that the scheduler's own counters can take over at any moment.
"""

from __future__ import annotations

from typing import NamedTuple

from tidegate.scheduling.admission import Admission
from tidegate.scheduling.contracts import Endpoint, RateLimit
from tidegate.scheduling.limit_window import Clocks
from tidegate.scheduling.rate_limit import RateLimiter, Room
from tidegate.scheduling.request import Request
from tidegate.scheduling.roster import Roster


class LimitDemand(NamedTuple):
    """What a request takes of which limits."""

    limits: tuple[RateLimit, ...]
    tokens: int


class LimitDesk:
    """Of one scheduler."""

    __slots__ = ("_admission", "_roster", "limiter")

    def __init__(self, roster: Roster, admission: Admission) -> None:
        self._roster = roster
        self._admission = admission
        self.limiter: RateLimiter = admission.limiter
        """The scheduler's own counters; ``limit_state`` carries them over a restart."""

    def demand(self, request: Request) -> LimitDemand | None:
        """What a request would be asked for by its limits; None: by none, or it is refused first.

        It may be refused otherwise when it is submitted: what was reserved is then released.
        """
        tenant = self._roster.tenants.get(request.tenant)
        if tenant is None or tenant.closed is not None or not tenant.rate_limits:
            return None
        limits = self._admission.limits_of(request, tenant)
        prompt_tokens = self._admission.accepted_prompt_tokens(request, tenant)
        if not limits or prompt_tokens is None:
            return None
        return LimitDemand(limits, self._admission.demand_tokens(request, tenant, prompt_tokens))

    def has_any(self, name: str) -> bool:
        """Whether a tenant has rate limits."""
        tenant = self._roster.tenants.get(name)
        return tenant is not None and bool(tenant.rate_limits)

    def room(
        self, name: str, endpoint: Endpoint | None, model: str | None, clocks: Clocks
    ) -> tuple[Room | None, Room | None]:
        """Of requests and of tokens, what its rate limits leave a tenant; None: not limited."""
        tenant = self._roster.tenants.get(name)
        if tenant is None:
            return None, None
        return self._admission.room(tenant, endpoint, model, clocks)
