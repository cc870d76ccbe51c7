"""What one run comes down to: the numbers by which the published runs are compared."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from tidegate.simulator.service_gap import ServedRequest, window_gaps

LIGHT_REQUESTS = 12
"""A tenant with no more is light: 7 of the artifact's 27, with 38 of the 1,500 requests."""
QUIET_REQUESTS = 30
"""14 of 27."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Times in seconds, gaps in service units (prompt + 2 x output tokens)."""

    light_ttft: float
    """Mean over light tenants of the tenant's mean time to first token."""
    quiet_ttft: float
    """The same over those of at most 30 requests."""
    mean_ttft: float
    """Over all requests that were served."""
    largest_gap: float
    mean_gap: float
    """Of 30 s windows with two continuously backlogged tenants; 0: there was none."""
    makespan: float
    served: int


def summarize(requests: Sequence[ServedRequest]) -> RunSummary:
    """The numbers of one run; ValueError: nothing was served."""
    sent = Counter(one.tenant for one in requests)
    by_tenant: dict[str, list[float]] = defaultdict(list)
    for one in requests:
        if (seconds := one.first_token_seconds) is not None:
            by_tenant[one.tenant].append(seconds)
    if not by_tenant:
        raise ValueError("nothing was served")
    gaps = [window.gap for window in window_gaps(requests)]
    everything = [seconds for each in by_tenant.values() for seconds in each]
    return RunSummary(
        light_ttft=_over_tenants(by_tenant, sent, LIGHT_REQUESTS),
        quiet_ttft=_over_tenants(by_tenant, sent, QUIET_REQUESTS),
        mean_ttft=fmean(everything),
        largest_gap=max(gaps, default=0.0),
        mean_gap=fmean(gaps) if gaps else 0.0,
        makespan=max(one.finished for one in requests if one.finished is not None),
        served=len(everything),
    )


def _over_tenants(by_tenant: dict[str, list[float]], sent: Counter[str], most: int) -> float:
    means = [fmean(each) for tenant, each in by_tenant.items() if sent[tenant] <= most]
    return fmean(means) if means else 0.0
