"""Counters of one rate limit of one tenant: what was taken in its window.

``rolling_window`` and ``calendar_window`` are the two kinds, exact both: what was taken counts in
the ``Slice`` of its moment, and stays changeable there (a reservation is settled into its own
slice) until that leaves the window.

Invariants: what is taken is the sum over the live slices, never negative; a slice that has left the
window is not changed or counted again. Amounts are requests and tokens; times are seconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple


class Clocks(NamedTuple):
    """Both clocks at one moment, in seconds."""

    now: float
    """Monotonic."""
    utc: float
    """Wall clock, since the epoch."""


class Slice:
    """Requests and tokens taken in one part of a window."""

    __slots__ = ("index", "requests", "tokens")

    def __init__(self, index: int) -> None:
        self.index = index
        self.requests = 0
        self.tokens = 0


class Window(ABC):
    """The counters of one limit; its figures hold as of the last :meth:`advance`."""

    def __init__(self) -> None:
        self.slices: dict[int, Slice] = {}
        """Those that are kept, oldest first."""

    @property
    @abstractmethod
    def taken(self) -> tuple[int, int]:
        """Requests and tokens that count now."""

    @abstractmethod
    def advance(self, clocks: Clocks) -> None:
        """Let time pass."""

    @abstractmethod
    def current(self) -> Slice:
        """Where what is taken now counts."""

    @abstractmethod
    def add(self, to: Slice, requests: int, tokens: int) -> None:
        """Count more (or, negative, less) in a slice; nothing where it has left the window."""

    @abstractmethod
    def replace(self, requests: int, tokens: int) -> None:
        """These are what counts, as if taken now."""

    @abstractmethod
    def wait_seconds(self, clocks: Clocks, requests: float, tokens: float) -> float:
        """Until no more than these still count, if nothing is taken meanwhile."""

    @abstractmethod
    def begin_utc(self, part: Slice, clocks: Clocks) -> float:
        """When a slice begins, by the wall clock."""

    @abstractmethod
    def slice_at(self, begin_utc: float, clocks: Clocks) -> Slice:
        """Where what was taken in a slice of then counts, as long as it would have."""

    def _slice(self, index: int) -> Slice:
        return self.slices.get(index) or self.slices.setdefault(index, Slice(index))
