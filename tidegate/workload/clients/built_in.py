"""The workloads that Tidegate brings, by name, and their clients as a scenario lists them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.scheduling.contracts import BuiltInWorkload
from tidegate.workload.clients import incidents, mixed_node
from tidegate.workload.clients.backlog import ten_thousand_against_five
from tidegate.workload.clients.client import Client, Workload
from tidegate.workload.clients.servegen import servegen
from tidegate.workload.requests import PlannedRequest
from tidegate.workload.traces.record import TRACES_ENVIRONMENT, TraceError

OPEN_REQUESTS_PER_SECOND = 2.5
POISON_FROM_SECONDS = 300.0
SERVEGEN_FOLDER = Path("servegen/data/language/m-small")
"""In $TIDEGATE_TRACES."""


def _servegen(seed: int) -> Workload:
    traces = os.environ.get(TRACES_ENVIRONMENT)
    if not traces:
        raise TraceError(f"{TRACES_ENVIRONMENT} names no folder of traces")
    return servegen(Path(traces) / SERVEGEN_FOLDER, seed)


BUILT_IN: dict[BuiltInWorkload, Callable[[int], Workload]] = {
    BuiltInWorkload.MIXED_NODE: lambda seed: mixed_node.mixed_node(mixed_node.FULL, seed),
    BuiltInWorkload.MIXED_NODE_HALF: lambda seed: mixed_node.mixed_node(mixed_node.HALF, seed),
    BuiltInWorkload.MIXED_NODE_OPEN: lambda seed: mixed_node.mixed_node_open(
        OPEN_REQUESTS_PER_SECOND, seed
    ),
    BuiltInWorkload.LONG_PROMPTS: incidents.long_prompts,
    BuiltInWorkload.AVALANCHE: incidents.avalanche,
    BuiltInWorkload.POISON: lambda seed: incidents.poison(seed, POISON_FROM_SECONDS),
    BuiltInWorkload.SERVEGEN: _servegen,
    BuiltInWorkload.TEN_THOUSAND_AGAINST_FIVE: ten_thousand_against_five,
}
"""By seed; :class:`TraceError`: its traces are not there, or damaged."""


@dataclass(frozen=True, slots=True)
class ListedClient:
    """A client of whose tenants some are listed: the others do not send, nor does anyone late."""

    inner: Client
    tier: str
    tenants: Sequence[str]
    until_seconds: float

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def kind(self) -> str:
        return self.inner.kind

    def arrivals(self) -> Iterator[PlannedRequest]:
        for request in self.inner.arrivals():
            if not self._in_time(request):
                return
            if request.tenant in self.tenants:
                yield request

    def follow_up(
        self, request: PlannedRequest, ended_at: float, completed: bool
    ) -> PlannedRequest | None:
        following = self.inner.follow_up(request, ended_at, completed)
        return following if following is not None and self._in_time(following) else None

    def _in_time(self, request: PlannedRequest) -> bool:
        return (request.at_seconds or 0.0) < self.until_seconds
