"""Windows and rates of multi-window, multi-burn-rate alerting.

An error budget is what an objective allows to fail: 0.5% at 99.5. A burn rate of 1 spends it in
exactly the objective's window; at 14.4 an hour spends 2% of a budget of 30 days. An alert fires
when both a long window (enough was burnt to matter) and a short one (it burns still) are above the
rate, and clears within the short one after the fault is mended. Source: the SRE workbook, chapter
"Alerting on SLOs"; the pairs are sloth's for 30 days.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Page: somebody is woken. Ticket: in working hours."""

    PAGE = "page"
    TICKET = "ticket"


@dataclass(frozen=True, slots=True)
class BurnWindow:
    """Alert while the budget burns above ``rate`` over both windows."""

    severity: Severity
    short: str
    """As PromQL writes it."""
    long: str
    rate: float
    """Times the rate that spends the budget in exactly its window."""


BURN_WINDOWS = (
    BurnWindow(Severity.PAGE, "5m", "1h", 14.4),
    BurnWindow(Severity.PAGE, "30m", "6h", 6),
    BurnWindow(Severity.TICKET, "2h", "1d", 3),
    BurnWindow(Severity.TICKET, "6h", "3d", 1),
)
RATIO_WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
"""Every window of the above, rising: one recording rule each."""

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def promql_duration(seconds: float) -> str:
    """A duration as PromQL writes it, in the largest unit that divides it; whole seconds."""
    whole = round(seconds)
    unit, length = next((unit, length) for unit, length in _UNITS if whole % length == 0)
    return f"{whole // length}{unit}"
