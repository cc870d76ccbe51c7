"""Turns for requests that take the engine's tokenizer and none of its steps.

They wait in no line of the scheduler, would be charged for nothing there and hold places of the
gate; but an engine's HTTP process has one core, which a flood of them would take from everybody's
streams. So few are let through at once, one tenant after the other (each in the order it came), and
a tenant that has too many waiting is refused.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from types import TracebackType

from tidegate.scheduling.outcomes import Outcome
from tidegate_sidecar.errors import ApiError

MOST_AT_ONCE = 4
MOST_WAITING = 256
"""Of one tenant."""


class SideLane:
    """Of one engine."""

    def __init__(self) -> None:
        self._free = MOST_AT_ONCE
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By tenant, who is next first."""

    @property
    def in_hand(self) -> int:
        """Those that wait or are let through."""
        return MOST_AT_ONCE - self._free + sum(map(len, self._waiting.values()))

    def turn(self, tenant: str) -> _Turn:
        """``async with``: waits for a turn; :class:`ApiError` (QUEUE_FULL) beyond the bound."""
        return _Turn(self, tenant)

    async def _enter(self, tenant: str) -> None:
        if self._free:
            self._free -= 1
            return
        line = self._waiting.setdefault(tenant, deque())
        if len(line) >= MOST_WAITING:
            raise ApiError(Outcome.QUEUE_FULL, retry_after=1)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # it was let through as its client left
            else:
                self._forget(tenant, turn)
            raise

    def _forget(self, tenant: str, turn: asyncio.Future[None]) -> None:
        line = self._waiting.get(tenant)
        if line is not None and turn in line:
            line.remove(turn)
            if not line:
                del self._waiting[tenant]

    def _leave(self) -> None:
        while self._waiting:
            tenant, line = self._waiting.popitem(last=False)
            turn = line.popleft()
            if line:
                self._waiting[tenant] = line  # behind the others
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class _Turn:
    def __init__(self, lane: SideLane, tenant: str) -> None:
        self._lane = lane
        self._tenant = tenant

    async def __aenter__(self) -> None:
        await self._lane._enter(self._tenant)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lane._leave()
