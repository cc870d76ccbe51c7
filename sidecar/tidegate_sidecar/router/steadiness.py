"""Two judgements that must not flap: whether a load is high, whether who was away is back. Pure.

Theory of operation. A :class:`Level` is a Schmitt trigger with a rest: it rises at once at one
threshold, and falls at a lower one, but not within ``REST_SECONDS`` of its rise. A
:class:`Comeback` lets who was away return at once; but a return that did not last
``LASTING_SECONDS`` makes the next one wait, and each further one twice as long, up to
``LONGEST_WAIT_SECONDS`` (the back-off of a circuit breaker, here for what comes and goes by
itself). Neither delays anything: they are asked where there is another way.

Bounds: a level rises at most ``T / REST_SECONDS + 1`` times in T seconds. Whoever flaps returns
about ``log2(LONGEST_WAIT_SECONDS)`` times, then once in ``LONGEST_WAIT_SECONDS`` at most.
"""

from __future__ import annotations

REST_SECONDS = 2.0
LASTING_SECONDS = 30.0
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0


class Level:
    """Whether a load is high."""

    __slots__ = ("_falls_at", "_rises_at", "_rose_at", "high")

    def __init__(self, rises_at: float, falls_at: float) -> None:
        self._rises_at = rises_at
        self._falls_at = falls_at
        self._rose_at = -float("inf")
        self.high = False

    def look(self, load: float, now: float) -> bool:
        """Whether it is high, with this load now."""
        if not self.high:
            if load >= self._rises_at:
                self.high, self._rose_at = True, now
        elif load <= self._falls_at and now >= self._rose_at + REST_SECONDS:
            self.high = False
        return self.high


class Comeback:
    """Whether who may come and go is there to stay."""

    __slots__ = ("_present", "_used_since", "_wait_seconds", "_waits_until", "used")

    def __init__(self) -> None:
        self._present = False
        self._wait_seconds = 0.0
        self._waits_until = -float("inf")
        self._used_since = -float("inf")
        self.used = False

    def look(self, present: bool, now: float) -> bool:
        """Whether to rely on it, present or not now."""
        if present and not self._present:
            self._waits_until = now + self._wait_seconds
        self._present = present
        used = present and now >= self._waits_until
        if used and not self.used:
            self._used_since = now
        elif self.used and not used:
            lasted = now - self._used_since >= LASTING_SECONDS
            doubled = max(FIRST_WAIT_SECONDS, 2.0 * self._wait_seconds)
            self._wait_seconds = 0.0 if lasted else min(LONGEST_WAIT_SECONDS, doubled)
        self.used = used
        return used
