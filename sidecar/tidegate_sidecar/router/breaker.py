"""A circuit breaker for one pod: who failed rests, and one request at a time tries it again. Pure.

Closed, it lets everything through. After ``FAILURES`` in a row it opens for a rest that doubles
with each failed trial, up to ``LONGEST_REST_SECONDS``; after each rest it lets one request through,
whose end closes it, or makes the rest longer. A trial that has no answer yet, or whose client went
away, keeps it open for one more rest and no longer: an answer may take minutes. What was sent
before it opened and fails now says nothing new. What fails is the pod, never the request: an error
that the pod gives for what the client sent is a success here.
"""

from __future__ import annotations

FAILURES = 3
REST_SECONDS = 0.5
LONGEST_REST_SECONDS = 30.0


class Breaker:
    """Of one pod."""

    __slots__ = ("_failures", "_rests_since")

    def __init__(self) -> None:
        self._failures = 0
        self._rests_since = 0.0

    def closed(self, now: float) -> bool:
        """Whether a request may be sent now."""
        return self._failures < FAILURES or now >= self._rests_since + self._rest_seconds()

    def sent(self, now: float) -> bool:
        """A request was sent; whether it is a trial, which ``failed`` is told."""
        trial = self._failures >= FAILURES
        if trial:
            self._rests_since = now
        return trial

    def succeeded(self) -> None:
        """The pod answered."""
        self._failures = 0

    def failed(self, now: float, trial: bool) -> None:
        """The pod could not be reached, or broke."""
        if trial or self._failures < FAILURES:
            self._failures += 1
            self._rests_since = now

    def _rest_seconds(self) -> float:
        doublings = min(self._failures - FAILURES, 16)
        return min(LONGEST_REST_SECONDS, REST_SECONDS * 2.0**doublings)
