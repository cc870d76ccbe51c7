"""From samples to the load report. Pure: everything is an argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tidegate.load.percentiles import percentiles
from tidegate.load.sample import Sample, SampleState
from tidegate.scheduling.contracts import (
    LOAD_REPORT_VERSION,
    ClientReport,
    LoadFigures,
    LoadReport,
    Scenario,
    TenantReport,
    TierReport,
)

LATE_SECONDS = 0.1
_LATE_PART = 0.1
"""Of a request's latency: a lag below it does not change what the figure says."""
_LATE_SHARE = 0.01


def build_report(
    scenario: Scenario,
    samples: Sequence[Sample],
    *,
    started_at: float,
    complete: bool,
    loop_lag_p99_seconds: float,
) -> LoadReport:
    """The report of a run whose samples are all settled."""
    wall = max((sample.ended or 0.0 for sample in samples), default=0.0)
    window = min(wall, scenario.duration_seconds)
    served = {id(sample): served_tokens(sample, window) for sample in samples}
    everything = sum(served.values())

    def figures(group: Iterable[Sample]) -> LoadFigures:
        members = list(group)
        return _figures(members, sum(served[id(s)] for s in members), everything, window)

    by_tenant: dict[str, list[Sample]] = {tenant.name: [] for tenant in scenario.tenants}
    for sample in samples:
        by_tenant[sample.tenant].append(sample)
    tiers = dict.fromkeys(tenant.tier for tenant in scenario.tenants)
    return LoadReport(
        version=LOAD_REPORT_VERSION,
        scenario=scenario.name,
        seed=scenario.seed,
        complete=complete,
        started_at=started_at,
        wall_seconds=wall,
        window_seconds=window,
        client=_client(samples, loop_lag_p99_seconds),
        total=figures(samples),
        tenants=tuple(
            TenantReport(tenant.name, tenant.tier, figures(by_tenant[tenant.name]))
            for tenant in scenario.tenants
        ),
        tiers=tuple(
            TierReport(
                tier,
                figures(s for t in scenario.tenants if t.tier == tier for s in by_tenant[t.name]),
            )
            for tier in tiers
        ),
    )


def served_tokens(sample: Sample, until_seconds: float) -> float:
    """Tokens served by a time: the prompt at the first token, output evenly from there on.

    Without a stream nothing is known before the end, where all counts at once.
    """
    if sample.ended is None:
        return 0.0
    if sample.first_token is None:
        done = sample.state is SampleState.OK and sample.ended <= until_seconds
        return float(sample.prompt_tokens + sample.output_tokens) if done else 0.0
    if sample.first_token > until_seconds:
        return 0.0
    span = sample.ended - sample.first_token
    part = 1.0 if span <= 0 else min(1.0, (until_seconds - sample.first_token) / span)
    return sample.prompt_tokens + part * sample.output_tokens


def waited_seconds(sample: Sample) -> float:
    """To the first token; without one, to however it ended."""
    until = sample.first_token if sample.first_token is not None else sample.ended
    return max(0.0, (until or 0.0) - sample.began)


def _figures(
    samples: Sequence[Sample], served: float, everything: float, window: float
) -> LoadFigures:
    states = Counter(sample.state for sample in samples)
    ok = [sample for sample in samples if sample.state is SampleState.OK]
    answered = [s for s in samples if s.state is SampleState.OK or s.first_token is not None]
    return LoadFigures(
        sent=len(samples),
        ok=len(ok),
        refused=_reasons(samples, SampleState.REFUSED),
        failed=_reasons(samples, SampleState.FAILED),
        unfinished=states[SampleState.UNFINISHED],
        prompt_tokens=sum(sample.prompt_tokens for sample in answered),
        output_tokens=sum(sample.output_tokens for sample in answered),
        tokens_per_second=served / window if window > 0 else 0.0,
        share=served / everything if everything > 0 else 0.0,
        ttft_seconds=percentiles(waited_seconds(s) for s in ok if s.stream),
        e2e_seconds=percentiles(max(0.0, (s.ended or 0.0) - s.began) for s in ok),
        longest_wait_seconds=max(map(waited_seconds, samples), default=0.0),
    )


def _reasons(samples: Iterable[Sample], state: SampleState) -> dict[str, int]:
    counts = Counter(sample.reason for sample in samples if sample.state is state)
    return dict(counts.most_common())


def _client(samples: Sequence[Sample], loop_lag_p99_seconds: float) -> ClientReport:
    lags = [(_send_lag(sample), sample) for sample in samples if sample.scheduled is not None]
    late = sum(
        lag > LATE_SECONDS and lag > _LATE_PART * ((sample.ended or 0.0) - sample.began)
        for lag, sample in lags
    )
    return ClientReport(
        send_lag_seconds=percentiles(lag for lag, _ in lags),
        late_sends=late,
        loop_lag_p99_seconds=loop_lag_p99_seconds,
        saturated=late > _LATE_SHARE * len(lags) or loop_lag_p99_seconds > LATE_SECONDS,
    )


def _send_lag(sample: Sample) -> float:
    sent = sample.sent if sample.sent is not None else sample.ended or 0.0
    return max(0.0, sent - sample.began)
