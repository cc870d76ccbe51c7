"""The last requests that ended and the last dispatches, in bounded rings: why somebody waited.

A record is kept in a ring of all, and in a short one of its tenant's own, so that a noisy neighbour
does not push out the one refusal that a quiet tenant asks about. An id is looked up, never looked
for: tenants in thousands remember requests in a hundred thousand.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container, Iterable
from typing import NamedTuple

from tidegate.scheduling.contracts import UsageRecord
from tidegate.scheduling.request import Refusal, Request

MAX_ENDED = 2_000
MAX_ENDED_OF_TENANT = 20
MAX_DISPATCHES = 10_000


class Ended(NamedTuple):
    """A request that has ended; times on the loop's clock."""

    record: UsageRecord
    arrival: float
    waited_until: float
    """Its dispatch, or its end where it had none; its arrival where it was never queued."""
    refusal: Refusal | None = None
    """Why it was not queued, where prompt limit, throttle or a rate limit refused it."""

    @property
    def end(self) -> float:
        """When it ended."""
        return self.arrival + self.record.duration_seconds

    @property
    def dispatched(self) -> bool:
        """Whether the engine had it."""
        return self.record.queued_seconds is not None


class Lately(NamedTuple):
    """How a tenant's requests of the last time ended."""

    seconds: float
    """How far that goes back."""
    records: list[UsageRecord]
    """Newest first."""
    slowest: UsageRecord | None
    """The one that was served and had its first token, or its end, last after its arrival."""

    @property
    def outcomes(self) -> Counter[str]:
        """How many ended how."""
        return Counter(record.outcome for record in self.records)


class _Dispatch(NamedTuple):
    at: float
    tenant: str
    request_id: str


_Index = dict[str, Ended]
"""By id."""


class _Ring:
    """The last ``most`` that ended; its index has them, and those of other rings beside."""

    __slots__ = ("_index", "entries")

    def __init__(self, most: int, index: _Index) -> None:
        self.entries: deque[Ended] = deque(maxlen=most)
        self._index = index

    def add(self, entry: Ended) -> None:
        """The newest."""
        if len(self.entries) == self.entries.maxlen:
            self._forget(self.entries[0])
        self.entries.append(entry)
        self._index[entry.record.id] = entry

    def clear(self) -> None:
        """All of them."""
        for entry in self.entries:
            self._forget(entry)
        self.entries.clear()

    def _forget(self, entry: Ended) -> None:
        name = entry.record.id
        if self._index.get(name) is entry:  # a router may have sent another of that id
            del self._index[name]


class RecentRequests:
    """The rings."""

    def __init__(self) -> None:
        self._by_id: _Index = {}
        self._own_by_id: _Index = {}
        """Of the tenants' own rings."""
        self._all = _Ring(MAX_ENDED, self._by_id)
        self._of_tenant: dict[str, _Ring] = {}
        self._dispatches: deque[_Dispatch] = deque(maxlen=MAX_DISPATCHES)

    def dispatched(self, request: Request, now: float) -> None:
        """A request went to the engine."""
        self._dispatches.append(_Dispatch(now, request.tenant, request.id))

    def ended(self, entry: Ended, known_tenant: bool) -> None:
        """A request has ended; ``known_tenant``: of the policy in force."""
        self._all.add(entry)
        if known_tenant:
            tenant = entry.record.tenant
            own = self._of_tenant.get(tenant)
            if own is None:
                own = self._of_tenant[tenant] = _Ring(MAX_ENDED_OF_TENANT, self._own_by_id)
            own.add(entry)

    def keep_tenants(self, names: Container[str]) -> None:
        """Forget the others' own rings."""
        for name in [name for name in self._of_tenant if name not in names]:
            self._of_tenant.pop(name).clear()

    def find(self, request_id: str) -> Ended | None:
        """The request, where it is still remembered."""
        return self._by_id.get(request_id) or self._own_by_id.get(request_id)

    def records(self) -> list[UsageRecord]:
        """All that are remembered, oldest first."""
        return [entry.record for entry in self._all.entries]

    def last_of(self, tenant: str) -> Iterable[UsageRecord]:
        """A tenant's last requests, newest first."""
        own = self._of_tenant.get(tenant)
        return () if own is None else (entry.record for entry in reversed(own.entries))

    def lately(self, tenant: str, now: float, seconds: float) -> Lately:
        """Of this tenant, those that ended within the last ``seconds``, or as far back as is
        remembered."""
        records: list[UsageRecord] = []
        slowest: UsageRecord | None = None
        ended = self._all.entries
        for entry in reversed(ended):
            if now - entry.end > seconds:
                break
            if entry.record.tenant != tenant:
                continue
            records.append(entry.record)
            if entry.dispatched and (
                slowest is None or _served_in(entry.record) > _served_in(slowest)
            ):
                slowest = entry.record
        else:
            if len(ended) == MAX_ENDED:
                seconds = now - ended[0].end
        return Lately(seconds, records, slowest)

    def present_at(self, moment: float) -> tuple[list[Ended], bool]:
        """Those that had come by then and had not ended; and whether all of these are known."""
        found = {}
        for ring in (self._all, *self._of_tenant.values()):
            for entry in reversed(ring.entries):
                if entry.arrival > moment:
                    continue
                if entry.end <= moment:
                    break  # and so had all before it
                found[entry.record.id] = entry
        ended = self._all.entries
        complete = len(ended) < MAX_ENDED or ended[0].end <= moment
        return list(found.values()), complete

    def served_between(self, since: float, until: float, but: str) -> tuple[Counter[str], bool]:
        """Dispatches by tenant, of all requests but one and its parts; and whether all of that time
        is known."""
        counts: Counter[str] = Counter()
        part = f"{but}-"
        for dispatch in reversed(self._dispatches):
            if dispatch.at < since:
                return counts, True
            own = dispatch.request_id == but or dispatch.request_id.startswith(part)
            if dispatch.at <= until and not own:
                counts[dispatch.tenant] += 1
        return counts, len(self._dispatches) < MAX_DISPATCHES


def _served_in(record: UsageRecord) -> float:
    """Until its first token, where one was seen by itself, else its end."""
    return record.duration_seconds if record.ttft_seconds is None else record.ttft_seconds
