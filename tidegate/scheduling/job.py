"""One request in the scheduler's hands, from submit to its end: where it stands, what it was
charged.

One object per request, because each decision creates one and 100,000 of them wait: the fields of
the second group are set at dispatch (``ledger.Ledger.charge``) and do not exist before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.scheduling.request import Request

if TYPE_CHECKING:
    from tidegate.scheduling.contracts import FairnessUnit
    from tidegate.scheduling.state import TenantState, TierState
    from tidegate.scheduling.tier_account import Grant


class Job:
    """A queued request (``waiting``) or a dispatched one."""

    __slots__ = (
        "charged_ms",
        "charged_tokens",
        "contended",
        "expected_cost",
        "grant",
        "order",
        "request",
        "served_tokens",
        "started",
        "tenant",
        "tier",
        "unit",
        "used_ms",
        "waiting",
        "waits_since",
    )

    expected_cost: float
    """What it was expected to cost its tier when it began to wait; kept by the outlook."""
    tier: TierState
    """Which dispatched it: its account is settled there though the tenant may have moved."""
    unit: FairnessUnit
    """In which its tenant was charged."""
    charged_tokens: float
    charged_ms: float
    """Of EngineTime, where the host reports it."""
    used_ms: float
    contended: bool
    """Another tenant of the tier waited for what this one was given."""
    grant: Grant
    started: bool
    served_tokens: int

    def __init__(
        self, request: Request, tenant: TenantState, order: int, waits_since: float
    ) -> None:
        self.request = request
        self.tenant = tenant
        self.order = order
        """Rises with arrival, over all tenants."""
        self.waits_since = waits_since
        """Its arrival, put off by the time that it was in the engine and lost its work there."""
        self.waiting = True
