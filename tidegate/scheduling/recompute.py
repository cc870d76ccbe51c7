"""When a preempted request is computed again.

Theory of operation: preemption frees all blocks of a victim, and what it had computed is computed
once more when it returns. A victim that returns at once, at the head of the queue, takes the blocks
back from the one it made room for, which evicts the next: the avalanche of source 000 (incident B).
So it waits ``min(max, queued x per)`` (10 ms and 500 ms there), outside the queue's head: those
behind it go first meanwhile. It keeps its sequence number, so that afterwards it is the first of
its tier again.

Bound: the back-off is at most ``max``, however long the queue, and it is over at a point in time,
not after an event that may never come; a request is preempted at most ``max_preemptions`` times by
choice (``preemption``). So it starves at most ``max x max_preemptions`` by these rules.

Invariants: a request in back-off is never yielded; order is otherwise unchanged; nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidegate.scheduling.plan_request import PlanRequest, Veto
from tidegate.scheduling.step_policy import TierTerms


def backoff_seconds(tier: TierTerms, queued_requests: int) -> float:
    """How long a request of the tier waits after a preemption, that many waiting: in the engine, or
    before it where no plug-in preempts."""
    return min(
        tier.backoff_max_seconds,
        max(queued_requests, 0) * tier.backoff_per_queued_request_seconds,
    )


def past_backoff(
    waiting: Iterable[PlanRequest], now: float, vetoed: dict[str, Veto]
) -> Iterator[PlanRequest]:
    """Those that may be computed, in their order; the others are noted in ``vetoed``."""
    for request in waiting:
        if request.not_before > now:
            vetoed[request.id] = Veto.RECOMPUTE_BACKOFF
        else:
            yield request
