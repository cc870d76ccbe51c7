"""Running requests by tier and by what they do: compute their prompt, or decode.

Theory of operation: in most steps nobody comes, goes or ends a prompt, and hundreds decode as they
did in the step before. Where a host names those in their prompts and hands over a tuple of who
runs, nobody is looked at one by one: the same tuple and the same prompts are the same phases.

Bound: O(running), in a step that changed nothing O(prompts).

Invariant: what is returned is what a look at each request would find, but for those that the caller
took out of the lists, who are not in the next tuple.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.scheduling.plan_request import PlanRequest, StepState

ByTier = list[list[PlanRequest]]


class Phases:
    """Of one engine, from step to step."""

    __slots__ = ("_decoding", "_prefilling", "_running", "_seen", "_tiers")

    def __init__(self, tiers: int) -> None:
        self._tiers = tiers
        self._running: Sequence[PlanRequest] | None = None
        self._seen: Sequence[PlanRequest] | None = None
        self._prefilling: ByTier = []
        self._decoding: ByTier = []

    def of(self, state: StepState) -> tuple[ByTier, ByTier]:
        """Those in their prompts and those that decode, each in the order of ``running``."""
        running, seen = state.running, state.prefilling
        if running is self._running and seen is not None and seen == self._seen:
            return self._prefilling, self._decoding
        self._prefilling = [[] for _ in range(self._tiers)]
        self._decoding = [[] for _ in range(self._tiers)]
        for one in running:
            if one.total_tokens - one.computed_tokens > 1:
                self._prefilling[one.tier].append(one)
            else:
                self._decoding[one.tier].append(one)
        self._running = running if isinstance(running, tuple) else None
        self._seen = seen
        return self._prefilling, self._decoding
