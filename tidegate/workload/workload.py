"""A scenario made into requests."""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, repeat
from pathlib import Path
from random import Random

from tidegate.scheduling.contracts import (
    ArrivalProcess,
    Endpoint,
    Scenario,
    TenantLoad,
    Trace,
)
from tidegate.workload.arrivals import arrival_times
from tidegate.workload.clients.built_in import BUILT_IN, ListedClient
from tidegate.workload.lengths import lengths
from tidegate.workload.requests import PlannedRequest, SharedPrefix
from tidegate.workload.traces import READERS, TraceError, TraceRecord
from tidegate.workload.traces.record import TRACES_ENVIRONMENT


class ScenarioError(ValueError):
    """A scenario that can't be used; the message names what is wrong with it."""


class Workload:
    """The requests of a scenario, whose relative trace paths start in ``folder`` (here)."""

    def __init__(self, scenario: Scenario, folder: Path | None = None) -> None:
        self.scenario = scenario
        self._folder = folder or Path()

    def requests(self, tenant: TenantLoad) -> Iterator[PlannedRequest]:
        """A tenant's requests in order, up to its ``requests`` and the scenario's duration.

        Those of a closed loop have no time and, without ``requests``, no end. Raises
        :class:`TraceError`; ValueError: the tenant is a built-in workload's, see ``clients``.
        """
        if tenant.arrival.process is ArrivalProcess.BUILT_IN:
            raise ValueError(f"tenant {tenant.name!r} is of a client of a built-in workload")
        planned = self._traced(tenant) if tenant.trace is not None else self._drawn(tenant)
        for request in islice(planned, tenant.requests):
            if request.at_seconds is not None and (
                request.at_seconds >= self.scenario.duration_seconds
            ):
                return
            yield request

    def clients(self) -> list[ListedClient]:
        """Who sends for the tenants of a built-in workload, at the beginning of a run.

        Of what a client sends for several tenants, only the requests of the listed ones.
        :class:`ScenarioError`: the workload has no tenant of such a name; :class:`TraceError`.
        """
        rows = {
            tenant.name: tenant
            for tenant in self.scenario.tenants
            if tenant.arrival.workload is not None
        }
        workload = next((tenant.arrival.workload for tenant in rows.values()), None)
        if workload is None:
            return []
        made = BUILT_IN[workload](self.scenario.seed)
        if unknown := [name for name in rows if name not in made.tenants]:
            raise ScenarioError(
                f"tenant {unknown[0]!r}: the workload {workload} has none of that name; it has "
                f"{', '.join(made.tenants)}"
            )
        return [
            ListedClient(client, client.tier, listed, self.scenario.duration_seconds)
            for client in made.clients
            if (listed := tuple(name for name in client.tenants if name in rows))
        ]

    def stream(self) -> Iterator[PlannedRequest]:
        """The requests of all tenants in time order; ValueError: a closed loop has no times.

        Nor has a tenant of a built-in workload, which may wait for answers.
        """
        for tenant in self.scenario.tenants:
            if tenant.arrival.process in (ArrivalProcess.CLOSED, ArrivalProcess.BUILT_IN):
                raise ValueError(
                    f"tenant {tenant.name!r} is in a closed loop or a built-in workload: "
                    "it has no times"
                )
        return heapq.merge(
            *(self.requests(tenant) for tenant in self.scenario.tenants),
            key=lambda request: request.at_seconds or 0.0,
        )

    def check_sources(self) -> None:
        """Read every trace once as it will be replayed, and what a built-in workload reads.

        :class:`TraceError`, :class:`ScenarioError`: it can't be replayed.
        """
        self.clients()
        for tenant in self.scenario.tenants:
            if tenant.trace is None:
                continue
            if next(self.requests(tenant), None) is None:
                raise TraceError(
                    f"{self._path(tenant.trace)}: no request for tenant {tenant.name!r} in the "
                    "part of the trace that the scenario replays"
                )
            for _ in self.requests(tenant):
                pass

    def _drawn(self, tenant: TenantLoad) -> Iterator[PlannedRequest]:
        if tenant.prompt_tokens is None:
            raise ValueError("a tenant without a trace has prompt_tokens")
        times = arrival_times(
            tenant.arrival, tenant.start_seconds, self._random(tenant, "arrivals")
        )
        prompts = lengths(tenant.prompt_tokens, self._random(tenant, "prompt lengths"))
        outputs: Iterator[int] = repeat(0)
        if tenant.output_tokens is not None:
            outputs = lengths(tenant.output_tokens, self._random(tenant, "output lengths"))
        for index, (at, prompt, output) in enumerate(zip(times, prompts, outputs, strict=False)):
            yield PlannedRequest(tenant.name, index, at, prompt, output)

    def _traced(self, tenant: TenantLoad) -> Iterator[PlannedRequest]:
        if tenant.trace is None:
            raise ValueError("a tenant with Trace arrivals has a trace")
        trace = tenant.trace
        embeds = tenant.endpoint is Endpoint.EMBEDDINGS
        for index, record in enumerate(self._replayed(trace)):
            elapsed = (record.at_seconds - trace.start_seconds) / trace.speedup
            yield PlannedRequest(
                tenant=tenant.name,
                index=index,
                at_seconds=tenant.start_seconds + elapsed,
                prompt_tokens=_divided(record.prompt_tokens, trace.length_divisor),
                output_tokens=0 if embeds else _divided(record.output_tokens, trace.length_divisor),
                prefix=_divided_prefix(record.prefix, trace.length_divisor),
            )

    def _replayed(self, trace: Trace) -> Iterator[TraceRecord]:
        end = math.inf if trace.length_seconds is None else trace.length_seconds
        for record in READERS[trace.format](self._path(trace)):
            if record.at_seconds - trace.start_seconds >= end:
                return
            if record.at_seconds >= trace.start_seconds and trace.tenant in (None, record.tenant):
                yield record

    def _path(self, trace: Trace) -> Path:
        beside = self._folder / trace.path
        traces = os.environ.get(TRACES_ENVIRONMENT)
        if not beside.exists() and traces:
            return Path(traces) / trace.path
        if not beside.exists() and not Path(trace.path).is_absolute():
            raise TraceError(
                f"{trace.path}: not in {self._folder}; set {TRACES_ENVIRONMENT} to the folder "
                "of your traces"
            )
        return beside

    def _random(self, tenant: TenantLoad, purpose: str) -> Random:
        return Random(f"{self.scenario.seed}/{tenant.name}/{purpose}")


def _divided(tokens: int, divisor: int) -> int:
    """Rounded up and at least 1: an engine takes no empty prompt and makes at least one token."""
    return max(1, -(-tokens // divisor))


def _divided_prefix(prefix: SharedPrefix | None, divisor: int) -> SharedPrefix | None:
    if prefix is None:
        return None
    return replace(prefix, block_tokens=max(1, prefix.block_tokens // divisor))
