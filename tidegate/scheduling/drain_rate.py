"""How soon the next place in a queue frees, from the gaps between its dispatches.

The estimator of TCP's retransmission timeout (RFC 6298): smoothed gap plus four times its smoothed
deviation, so that a promise made from it holds although dispatches come unevenly. O(1); never less
than the time for which the queue has stood still.
"""

from __future__ import annotations


class DrainRate:
    """Of one tenant's queue."""

    __slots__ = ("_deviation_seconds", "_gap_seconds", "_last", "_since")

    def __init__(self) -> None:
        self._gap_seconds: float | None = None
        self._deviation_seconds = 0.0
        self._last: float | None = None
        self._since: float | None = None

    def waiting(self, now: float) -> None:
        """The queue was empty and is not any more: time without demand is no gap."""
        self._since = now

    def dispatched(self, now: float) -> None:
        """One request left the queue for the engine."""
        since = self._since
        if since is not None:
            gap = max(now - since, 0.0)
            if self._gap_seconds is None:
                self._gap_seconds, self._deviation_seconds = gap, gap / 2
            else:
                error = gap - self._gap_seconds
                self._gap_seconds += error / 8
                self._deviation_seconds += (abs(error) - self._deviation_seconds) / 4
        self._last = self._since = now

    def next_place_seconds(self, now: float) -> float | None:
        """Expected wait for the next dispatch, on the safe side; None: nothing measured yet."""
        if self._gap_seconds is None or self._last is None:
            return None
        expected = self._gap_seconds + 4 * self._deviation_seconds
        # A queue that stands still longer than ever before tells more than its past.
        return max(expected, now - max(self._last, self._since or self._last))
