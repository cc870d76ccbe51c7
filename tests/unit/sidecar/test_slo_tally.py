"""Which requests count for a promise, and which kept it."""

from __future__ import annotations

import pytest
from tidegate_sidecar.slo_tally import Ending, SloTally, Verdict, judged

from tidegate.scheduling.contracts import SloMetric, SloObjective, TierPolicy
from tidegate.scheduling.outcomes import Outcome

TTFT, ITL, E2E = (
    SloMetric.TIME_TO_FIRST_TOKEN,
    SloMetric.INTER_TOKEN_LATENCY,
    SloMetric.END_TO_END,
)
KEPT, LATE, REFUSED = Verdict.KEPT, Verdict.LATE, Verdict.REFUSED


@pytest.mark.parametrize(
    ("metric", "ending", "verdict"),
    [
        (TTFT, Ending(Outcome.COMPLETED, 9.0, 1.0), KEPT),
        (TTFT, Ending(Outcome.COMPLETED, 9.0, 2.1), LATE),
        (TTFT, Ending(Outcome.COMPLETED, 1.0), KEPT),
        (TTFT, Ending(Outcome.COMPLETED, 3.0), LATE),
        (TTFT, Ending(Outcome.ENGINE_FAILED, 9.0, 1.0), KEPT),
        (TTFT, Ending(Outcome.ENGINE_FAILED, 0.1), REFUSED),
        (TTFT, Ending(Outcome.THROTTLED, 0.0), REFUSED),
        (TTFT, Ending(Outcome.QUEUE_WAIT_EXCEEDED, 0.5), REFUSED),
        (TTFT, Ending(Outcome.CLIENT_CLOSED, 1.0), None),
        (TTFT, Ending(Outcome.CLIENT_CLOSED, 3.0), LATE),
        (TTFT, Ending(Outcome.CLIENT_CLOSED, 3.0, 1.0), KEPT),
        (TTFT, Ending(Outcome.DEADLINE_EXCEEDED, 0.1), None),
        (TTFT, Ending(Outcome.RATE_LIMITED, 0.0), None),
        (TTFT, Ending(Outcome.QUEUE_FULL, 0.0), None),
        (TTFT, Ending(Outcome.MALFORMED, 0.0), None),
        (E2E, Ending(Outcome.COMPLETED, 2.0, 0.1), KEPT),
        (E2E, Ending(Outcome.COMPLETED, 2.1, 0.1), LATE),
        (E2E, Ending(Outcome.ENGINE_FAILED, 0.5, 0.1), REFUSED),
        (E2E, Ending(Outcome.CLIENT_CLOSED, 1.0, 0.1), None),
        (ITL, Ending(Outcome.COMPLETED, 9.0, 1.0, 1.9), KEPT),
        (ITL, Ending(Outcome.CLIENT_CLOSED, 9.0, 1.0, 2.1), LATE),
        (ITL, Ending(Outcome.COMPLETED, 9.0, 1.0), None),
        (ITL, Ending(Outcome.THROTTLED, 0.0), None),
    ],
)
def test_a_promise_of_two_seconds(
    metric: SloMetric, ending: Ending, verdict: Verdict | None
) -> None:
    assert judged(metric, 2.0, ending) is verdict


def test_what_is_not_good_was_refused_or_late() -> None:
    tally = SloTally()
    tally.apply_policy(TierPolicy("t", slo_objectives=(SloObjective(TTFT, 2.0),)))
    for ending in (
        Ending(Outcome.COMPLETED, 5.0, 1.0),
        Ending(Outcome.COMPLETED, 5.0, 3.0),
        Ending(Outcome.THROTTLED, 0.0),
        Ending(Outcome.RATE_LIMITED, 0.0),
        Ending(Outcome.QUEUE_WAIT_EXCEEDED, 9.0),
    ):
        tally.ended(ending)
    (count,) = tally.counts.values()
    assert (count.requests, count.good, count.refused) == (4, 1, 2)


def test_another_target_counts_on_and_a_dropped_objective_goes() -> None:
    tally = SloTally()
    tally.apply_policy(
        TierPolicy("t", slo_objectives=(SloObjective(TTFT, 2.0), SloObjective(E2E, 9.0)))
    )
    tally.ended(Ending(Outcome.COMPLETED, 5.0, 1.0))
    tally.apply_policy(TierPolicy("t", slo_objectives=(SloObjective(TTFT, 0.5),)))
    tally.ended(Ending(Outcome.COMPLETED, 5.0, 1.0))
    (count,) = tally.counts.values()
    assert (count.requests, count.good) == (2, 1)
