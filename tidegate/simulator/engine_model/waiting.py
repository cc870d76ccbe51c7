"""The engine's waiting queue, in arrival order or by priority, and who is preempted.

As in vLLM: ``fcfs`` appends arrivals and puts a preempted request in front; its victim is the
request admitted last. ``priority`` orders by (priority, arrival), lower first, and its victim is
the running request with the largest (priority, arrival).
"""

from __future__ import annotations

import enum
import heapq
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from tidegate.simulator.engine_model.request import EngineRequest


class SchedulingPolicy(enum.StrEnum):
    """Values of vLLM's ``--scheduling-policy``."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class WaitingQueue(Protocol):
    """Requests that hold neither a seat nor blocks."""

    def add(self, request: EngineRequest) -> None:
        """Enqueue an arrival."""

    def restore(self, request: EngineRequest) -> None:
        """Enqueue a preempted request."""

    def peek(self) -> EngineRequest:
        """The request that ``pop`` would return; the queue must not be empty."""

    def pop(self) -> EngineRequest:
        """Take the next request; the queue must not be empty."""

    def remove(self, request: EngineRequest) -> None:
        """Drop a request that is in the queue."""

    def victim_index(self, running: list[EngineRequest]) -> int:
        """Index in ``running`` (not empty) of the request to preempt."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[EngineRequest]: ...


class FcfsQueue:
    """Arrival order."""

    def __init__(self) -> None:
        self._queue: deque[EngineRequest] = deque()

    def add(self, request: EngineRequest) -> None:
        self._queue.append(request)

    def restore(self, request: EngineRequest) -> None:
        self._queue.appendleft(request)

    def peek(self) -> EngineRequest:
        return self._queue[0]

    def pop(self) -> EngineRequest:
        return self._queue.popleft()

    def remove(self, request: EngineRequest) -> None:
        self._queue.remove(request)

    def victim_index(self, running: list[EngineRequest]) -> int:
        return len(running) - 1

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[EngineRequest]:
        return iter(self._queue)


def _rank(request: EngineRequest) -> tuple[int, float, int]:
    return (request.priority, request.arrived_at, request.arrival_number)


class PriorityQueue:
    """(priority, arrival) order, lower first. Removed entries are skipped when they surface."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, int, EngineRequest]] = []
        self._members: dict[int, EngineRequest] = {}

    def add(self, request: EngineRequest) -> None:
        self._members[request.arrival_number] = request
        heapq.heappush(self._heap, (*_rank(request), request))

    def restore(self, request: EngineRequest) -> None:
        self.add(request)

    def peek(self) -> EngineRequest:
        self._drop_removed()
        return self._heap[0][3]

    def pop(self) -> EngineRequest:
        self._drop_removed()
        request = heapq.heappop(self._heap)[3]
        del self._members[request.arrival_number]
        return request

    def remove(self, request: EngineRequest) -> None:
        del self._members[request.arrival_number]

    def victim_index(self, running: list[EngineRequest]) -> int:
        return max(range(len(running)), key=lambda index: _rank(running[index]))

    def _drop_removed(self) -> None:
        while self._heap and self._heap[0][2] not in self._members:
            heapq.heappop(self._heap)

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[EngineRequest]:
        return iter(sorted(self._members.values(), key=_rank))


def make_queue(policy: SchedulingPolicy) -> WaitingQueue:
    """An empty queue of that policy."""
    return PriorityQueue() if policy is SchedulingPolicy.PRIORITY else FcfsQueue()
