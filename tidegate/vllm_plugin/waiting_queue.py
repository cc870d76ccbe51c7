"""vLLM's waiting queue, of which one step sees only those who may enter it.

Theory of operation: the queue is vLLM's first-come-first-served one, unchanged, so a stock step is
stock. For a planned step a *line* is laid before it: vLLM peeks at and pops from the line, and the
queue looks empty when the line is. Vetoed requests are thereby parked outside its head and cost
nothing, however many they are; vLLM itself would look at each of them in every step.

Invariants: what is popped is what was peeked at; length and iteration are always the whole queue's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from vllm.v1.core.sched.request_queue import (  # type: ignore[import-not-found]
    FCFSRequestQueue,
)

from tidegate.vllm_plugin.vllm_types import VllmRequest


class PlannedQueue(FCFSRequestQueue):  # type: ignore[misc]
    """``joins(request, first)`` and ``leaves(request)`` are told whoever comes and goes; they must
    not raise."""

    def __init__(
        self,
        joins: Callable[[VllmRequest, bool], None],
        leaves: Callable[[VllmRequest], None],
    ) -> None:
        super().__init__()
        self._joins, self._leaves = joins, leaves
        self._line: deque[VllmRequest] | None = None

    def open(self, line: Iterable[VllmRequest]) -> None:
        """The step sees these, in this order, and nobody else."""
        self._line = deque(line)

    def open_to_all(self) -> None:
        """The step sees, after what is left of the line, everybody else in stock order."""
        if self._line is not None:
            there = set(self._line)
            self._line.extend([request for request in self if request not in there])

    def close(self) -> None:
        """The step is over."""
        self._line = None

    def __bool__(self) -> bool:
        return bool(super().__bool__() if self._line is None else self._line)

    def peek_request(self) -> Any:
        return super().peek_request() if self._line is None else self._line[0]

    def pop_request(self) -> Any:
        if self._line is None:
            request = super().pop_request()
        else:
            request = self._line.popleft()
            super().remove_request(request)
        self._leaves(request)
        return request

    def add_request(self, request: VllmRequest) -> None:
        super().add_request(request)
        self._joins(request, False)

    def prepend_request(self, request: VllmRequest) -> None:
        super().prepend_request(request)
        self._joins(request, True)

    def prepend_requests(self, requests: Iterable[VllmRequest]) -> None:
        those = list(requests)
        super().prepend_requests(those)
        for request in those:
            self._joins(request, True)

    def remove_request(self, request: VllmRequest) -> None:
        super().remove_request(request)
        self._leaves(request)

    def remove_requests(self, requests: Iterable[VllmRequest]) -> None:
        gone = set(requests)
        those = [request for request in self if request in gone]
        super().remove_requests(gone)
        for request in those:
            self._leaves(request)
