"""What the server is yet to be told about limits, kept until it has confirmed it.

Of each reservation there is at most one entry, its newest state; of what was counted without the
server, sums by limit and slice. So what waits is bounded by the requests in hand when the server
went away and by the number of limits in use, however long it stays away.

Invariant: an entry leaves only when the server confirmed it; each may be sent any number of times.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import count, islice

from tidegate.scheduling.rate_limit import Reservation

BATCH = 128
"""Operations sent at once."""
SLICES_KEPT = 62
"""Of one limit: older ones count no more in any window."""

Keys = tuple[str, ...]
"""Of the script: the hold, then the counters of the limits."""
Counted = tuple[str, str, int]
"""Key of a limit's counters, its window, and the slice."""
Entry = tuple[Keys, tuple[str | int, ...]]
Send = Callable[[Sequence[Entry]], Awaitable[None]]


class StoreAway(Exception):
    """No answer: the caller goes on without the server."""


class Outbox:
    """Of one pod."""

    def __init__(self, pod: str) -> None:
        self._pod = pod
        self._numbers = count(1)
        self._states: dict[Keys, tuple[str | int, ...]] = {}
        self._sums: dict[str, dict[tuple[str, str], dict[int, tuple[int, int]]]] = {}
        """By tenant's UID, limit and slice: requests and tokens counted without the server."""
        self._batches: dict[Keys, tuple[str | int, ...]] = {}
        """Sums under way, under the name that they keep until they are confirmed."""

    def __len__(self) -> int:
        return len(self._states) + len(self._batches) + len(self._sums)

    def hold(self, tenant_uid: str) -> str:
        """A new name for what is reserved at once."""
        return f"tidegate:held:{{{tenant_uid}}}:{self._pod}:{next(self._numbers)}"

    def put(self, keys: Keys, *operation: str | int) -> None:
        """What is now to become of a reservation."""
        self._states.pop(keys, None)  # the newest comes last
        self._states[keys] = operation

    def count(self, tenant_uid: str, counted: Sequence[Counted], tokens: int) -> None:
        """One request that was counted here alone."""
        limits = self._sums.setdefault(tenant_uid, {})
        for key, window, part in counted:
            sums = limits.setdefault((key, window), {})
            requests, before = sums.get(part, (0, 0))
            sums[part] = requests + 1, before + tokens
            while len(sums) > SLICES_KEPT:
                del sums[min(sums)]

    def clear(self) -> None:
        """Nobody is to be told any more."""
        self._states.clear()
        self._sums.clear()
        self._batches.clear()

    async def flush(self, send: Send) -> None:
        """Send all; StoreAway as ``send`` raises it, and what is not confirmed is kept."""
        self._gather()
        for waiting in (self._states, self._batches):
            while entries := list(islice(waiting.items(), BATCH)):
                await send(entries)
                for keys, operation in entries:
                    if waiting.get(keys) is operation:
                        del waiting[keys]

    def _gather(self) -> None:
        for tenant_uid, limits in self._sums.items():
            keys = [self.hold(tenant_uid)]
            arguments: list[str | int] = ["add"]
            for (key, window), sums in limits.items():
                for part, (requests, tokens) in sums.items():
                    keys.append(key)
                    arguments += (window, part, requests, tokens)
            self._batches[tuple(keys)] = tuple(arguments)
        self._sums.clear()


class SharedReservation(Reservation):
    """What one request holds in the server."""

    __slots__ = ("_keys", "_outbox")

    def __init__(self, outbox: Outbox, keys: Keys, tokens: int) -> None:
        super().__init__((), tokens)
        self._outbox: Outbox | None = outbox
        self._keys = keys

    def top_up(self, tokens: int) -> None:
        if tokens > self.tokens and self._outbox is not None:
            self.tokens = tokens
            self._outbox.put(self._keys, "top_up", tokens)

    def settle(self, tokens: int) -> None:
        self._end(tokens, "settle", tokens)

    def release(self) -> None:
        self._end(0, "release")

    def _end(self, tokens: int, *operation: str | int) -> None:
        if self._outbox is not None:
            self.tokens = tokens
            self._outbox.put(self._keys, *operation)
            self._outbox = None


class LocalReservation(Reservation):
    """What one request holds here alone, told to the server when it has ended."""

    __slots__ = ("_counted", "_local", "_outbox", "_tenant_uid")

    def __init__(
        self, outbox: Outbox, tenant_uid: str, counted: Sequence[Counted], local: Reservation
    ) -> None:
        super().__init__((), local.tokens)
        self._outbox: Outbox | None = outbox
        self._tenant_uid = tenant_uid
        self._counted = counted
        self._local = local

    def top_up(self, tokens: int) -> None:
        self._local.top_up(tokens)
        self.tokens = self._local.tokens

    def settle(self, tokens: int) -> None:
        self._local.settle(tokens)
        if self._outbox is not None:
            self.tokens = tokens
            self._outbox.count(self._tenant_uid, self._counted, tokens)
            self._outbox = None

    def release(self) -> None:
        self._local.release()
        self._outbox = None
