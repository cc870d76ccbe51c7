"""A circuit breaker for one pod: who failed rests, and one request at a time tries it again. Pure.

Closed, it lets everything through. After ``FAILURES`` in a row it opens for a rest that doubles
with each failed trial, up to ``LONGEST_REST_SECONDS``; then it lets one request through, whose end
closes or reopens it. What fails is the pod, never the request: an error that the pod gives for what
the client sent is a success here.
"""

from __future__ import annotations

FAILURES = 3
REST_SECONDS = 0.5
LONGEST_REST_SECONDS = 30.0


class Breaker:
    """Of one pod."""

    __slots__ = ("_failures", "_opened_at", "_trial")

    def __init__(self) -> None:
        self._failures = 0
        self._opened_at = 0.0
        self._trial = False

    def closed(self, now: float) -> bool:
        """Whether a request may be sent now."""
        if self._failures < FAILURES:
            return True
        return not self._trial and now >= self._opened_at + self._rest_seconds()

    def sent(self) -> None:
        """A request was sent; on an open breaker it is the one trial."""
        self._trial = self._failures >= FAILURES

    def succeeded(self) -> None:
        """The pod answered."""
        self._failures = 0
        self._trial = False

    def failed(self, now: float) -> None:
        """The pod could not be reached, or broke."""
        self._failures += 1
        self._opened_at = now
        self._trial = False

    def unused(self) -> None:
        """A request that was sent says nothing of the pod: its client went away."""
        self._trial = False

    def _rest_seconds(self) -> float:
        doublings = min(self._failures - FAILURES, 16)
        return min(LONGEST_REST_SECONDS, REST_SECONDS * 2.0**doublings)
