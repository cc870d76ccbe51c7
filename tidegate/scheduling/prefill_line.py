"""The prefills of one tier in a step: those that run and those that wait, earliest first.

Theory of operation: a tier's running prefills and its waiting requests are one line in rising
sequence, so that a waiting request that is earlier (one that was preempted) is served before a
running one that is later; stock vLLM serves all that run first. Waiting requests come in order and
are read one ahead, running ones are few and sorted.

Bound: O(log n) a request in the n that run; of those that wait one more is read than is popped.

Invariants: every request comes once, unless it is put back; after ``hold_up`` none that waits does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidegate.scheduling.plan_request import PlanRequest


class PrefillLine:
    """One tier's prefills, earliest first."""

    __slots__ = ("_running", "_waiting", "head")

    def __init__(self, running: Iterable[PlanRequest], waiting: Iterator[PlanRequest]) -> None:
        self._running = sorted(running, key=lambda one: -one.sequence)
        self._waiting = waiting
        self.head = next(waiting, None)
        """The first that waits."""

    def __bool__(self) -> bool:
        return bool(self._running) or self.head is not None

    def pop(self) -> tuple[PlanRequest, bool] | None:
        """The earliest, and whether it waits; None: no more."""
        running, head = self._running, self.head
        if head is not None and not (running and running[-1].sequence < head.sequence):
            self.head = next(self._waiting, None)
            return head, True
        return (running.pop(), False) if running else None

    def pop_running(self) -> tuple[PlanRequest, bool] | None:
        """The earliest that runs; None: none does."""
        return (self._running.pop(), False) if self._running else None

    def put_back(self, request: PlanRequest) -> None:
        """The one popped last runs now and comes next again."""
        self._running.append(request)

    def hold_up(self) -> None:
        """Nobody else of this tier enters in this step."""
        self.head = None
        self._waiting = iter(())

    def wanted_tokens(self) -> int:
        """Tokens that those who run and the first that waits would compute, cached ones too."""
        waiting = self.head.total_tokens if self.head is not None else 0
        return waiting + sum([one.total_tokens - one.computed_tokens for one in self._running])

    def most_left_to_compute(self) -> int:
        """Tokens of the longest that runs and is left in it."""
        return max((one.total_tokens - one.computed_tokens for one in self._running), default=0)
