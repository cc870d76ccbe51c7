"""The condition SLOMet of each pool and tier, as it is shown.

It is told at once when it turns. Its message has figures, so that is told anew at the pace of an
object's other figures: conditions are written at once, and one that counts would be written at
every count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tidegate_operator.findings import Finding
from tidegate_operator.slo.promises import Promise, slo_finding


class SloMet:
    """What was last told of each."""

    def __init__(
        self,
        runbooks: str,
        pool_seconds: float,
        tier_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``runbooks`` is where docs/runbooks/ is read; the others are between two messages."""
        self._runbooks = runbooks
        self._pool_seconds = pool_seconds
        self._tier_seconds = tier_seconds
        self._clock = clock
        self._told: dict[tuple[str, bool], tuple[float, Finding]] = {}

    def of_pool(self, name: str, promises: Sequence[Promise] | None) -> list[Finding] | None:
        """Of a pool (namespace/name); None where its promises are: not known yet."""
        return self._paced(name, promises, of_tier=False)

    def of_tier(
        self, name: str, pools: Sequence[Sequence[Promise] | None], *, partly: bool
    ) -> list[Finding] | None:
        """Of a tier over its pools, each with all its promises; None while one of them is not known
        and ``partly`` is not set."""
        if None in pools and not partly:
            return None
        promises = [p for known in pools if known is not None for p in known if p.tier == name]
        return self._paced(name, promises, of_tier=True)

    def forget_pool(self, name: str) -> None:
        """It is gone."""
        self._told.pop((name, False), None)

    def _paced(
        self, name: str, promises: Sequence[Promise] | None, *, of_tier: bool
    ) -> list[Finding] | None:
        if promises is None:
            return None
        key, now = (name, of_tier), self._clock()
        found = slo_finding(promises, self._runbooks, of_tier=of_tier)
        if not found:
            self._told.pop(key, None)
            return []
        (new,) = found
        at, old = self._told.get(key, (now, None))
        pace = self._tier_seconds if of_tier else self._pool_seconds
        turned = old is None or (old.status, old.reason) != (new.status, new.reason)
        if turned or (new != old and now - at >= pace):
            self._told[key] = now, new
            return [new]
        assert old is not None
        return [old]
