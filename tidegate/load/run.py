"""One run of a workload against one endpoint.

Invariants: a request is sent at most once and settled exactly once; nothing is sent after the
scenario's duration or after ``stop``; when ``run`` returns no task and no connection is left, and
every sample is settled.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import replace

from tidegate.load.client_lag import LoopLag
from tidegate.load.http_client import HttpClient, connection_limit
from tidegate.load.sample import Sample, SampleState
from tidegate.load.wire import WireFormat, WireRequest
from tidegate.scheduling.contracts import ArrivalProcess, TenantLoad
from tidegate.workload import PlannedRequest, Workload
from tidegate.workload.clients import Client

_REFUSED_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
_LONGEST_TURN_SECONDS = 0.05

_Send = Callable[[PlannedRequest, WireRequest], Coroutine[None, None, object]]


class LoadRun:
    """Sends a workload. ``keys``: API key by tenant; ``model`` replaces the scenario's.

    :class:`TraceError`, :class:`ScenarioError`: the clients of its built-in workload can't be made.
    """

    def __init__(
        self,
        workload: Workload,
        endpoint: str,
        keys: Mapping[str, str],
        *,
        model: str | None = None,
    ) -> None:
        self.scenario = workload.scenario
        self.samples: list[Sample] = []
        self.counts: Counter[SampleState] = Counter()
        """Settled requests by state, for progress."""
        self.loop_lag = LoopLag()
        self.started_at = 0.0
        self.complete = False
        self._workload = workload
        self._clients = workload.clients()
        self._endpoint = endpoint
        self._formats = {
            tenant.name: WireFormat(
                tenant,
                model=model or self.scenario.model,
                seed=self.scenario.seed,
                key=keys.get(tenant.name),
            )
            for tenant in self.scenario.tenants
        }
        self._origin = time.perf_counter()
        self._stopped = asyncio.Event()

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the start of the run."""
        return time.perf_counter() - self._origin

    @property
    def in_flight(self) -> int:
        """Requests that are not settled."""
        return len(self.samples) - self.counts.total()

    def stop(self) -> None:
        """Send nothing more and give up what is in flight; ``run`` then returns soon."""
        self._stopped.set()

    async def run(self) -> None:
        """Send everything and await the answers. :class:`LoadError`: the endpoint is away."""
        async with HttpClient(
            self._endpoint, lambda: self.elapsed_seconds, connection_limit()
        ) as client:
            await self._unless_stopped(client.check_reachable())
            self.started_at = time.time()
            self._origin = time.perf_counter()
            lag = asyncio.create_task(self.loop_lag.watch())
            try:
                if not self._stopped.is_set():
                    await self._unless_stopped(self._send_all(client))
            finally:
                lag.cancel()
                await asyncio.gather(lag, return_exceptions=True)
        self.complete = not self._stopped.is_set()

    async def _unless_stopped(self, work: Coroutine[None, None, None]) -> None:
        """Await ``work``, cancelled by ``stop``; raises what it raised."""
        tasks = asyncio.create_task(work), asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            outcome, _ = await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
            raise outcome

    async def _send_all(self, client: HttpClient) -> None:
        limit = self.scenario.duration_seconds + self.scenario.drain_seconds
        with contextlib.suppress(TimeoutError):  # what is unanswered by then is unfinished
            async with asyncio.timeout(limit), asyncio.TaskGroup() as tenants:
                for tenant in self.scenario.tenants:
                    if tenant.arrival.process is not ArrivalProcess.BUILT_IN:
                        tenants.create_task(self._send_tenant(client, tenant))
                for source in self._clients:
                    tenants.create_task(self._send_client(client, source))

    async def _send_client(self, client: HttpClient, source: Client) -> None:
        """What a client of a built-in workload sends, also because of the answers."""

        async def send(planned: PlannedRequest, wire: WireRequest) -> None:
            following: PlannedRequest | None = planned
            while following is not None:
                sample = await self._one(client, following, wire)
                following = self._following(source, following, sample)
                if following is not None:
                    wire = self._formats[following.tenant].build(following)
                    await self._sleep_until(following.at_seconds or 0.0)

        await self._open_loop(source.arrivals(), send)

    def _following(
        self, source: Client, ended: PlannedRequest, sample: Sample
    ) -> PlannedRequest | None:
        """The request that the end of another brings, at a time that its refusal allows."""
        now = self.elapsed_seconds
        planned = source.follow_up(ended, now, sample.state is SampleState.OK)
        if planned is None:
            return None
        earliest = now
        if sample.state is not SampleState.OK and sample.retry_after_seconds is not None:
            earliest += min(sample.retry_after_seconds, _LONGEST_PAUSE_SECONDS)
        at = max(planned.at_seconds or 0.0, earliest)
        return replace(planned, at_seconds=at) if at < self.scenario.duration_seconds else None

    async def _send_tenant(self, client: HttpClient, tenant: TenantLoad) -> None:
        requests = self._workload.requests(tenant)
        if tenant.arrival.process is not ArrivalProcess.CLOSED:
            await self._open_loop(requests, lambda planned, wire: self._one(client, planned, wire))
            return
        await self._sleep_until(tenant.start_seconds)
        async with asyncio.TaskGroup() as callers:
            for _ in range(tenant.arrival.concurrency or 1):
                callers.create_task(self._closed_loop(client, tenant, requests))

    async def _open_loop(self, requests: Iterator[PlannedRequest], send: _Send) -> None:
        yielded = self.elapsed_seconds
        async with asyncio.TaskGroup() as in_flight:
            for planned in requests:
                wire = self._formats[planned.tenant].build(planned)
                now = self.elapsed_seconds
                delay = (planned.at_seconds or 0.0) - now
                # A turn of the loop for each request would pace a burst by the traffic under way.
                if delay > 0 or now - yielded > _LONGEST_TURN_SECONDS:
                    await asyncio.sleep(max(0.0, delay))
                    yielded = self.elapsed_seconds
                in_flight.create_task(send(planned, wire))

    async def _closed_loop(
        self, client: HttpClient, tenant: TenantLoad, requests: Iterator[PlannedRequest]
    ) -> None:
        """One caller. A refused one pauses, as a client must, before it asks for something new."""
        while self.elapsed_seconds < self.scenario.duration_seconds:
            planned = next(requests, None)
            if planned is None:
                return
            sample = await self._one(client, planned, self._formats[tenant.name].build(planned))
            if sample.state is not SampleState.OK:
                pause = _REFUSED_PAUSE_SECONDS
                if sample.retry_after_seconds is not None:
                    pause = min(sample.retry_after_seconds, _LONGEST_PAUSE_SECONDS)
                left = self.scenario.duration_seconds - self.elapsed_seconds
                await asyncio.sleep(max(0.0, min(pause, left)))

    async def _one(self, client: HttpClient, planned: PlannedRequest, wire: WireRequest) -> Sample:
        sample = Sample(
            tenant=planned.tenant,
            index=planned.index,
            scheduled=planned.at_seconds,
            prompt_tokens=planned.prompt_tokens,
            stream=wire.stream,
        )
        self.samples.append(sample)
        try:
            await client.send(wire, sample)
        finally:
            if sample.state is SampleState.IN_FLIGHT:
                sample.end(SampleState.UNFINISHED, self.elapsed_seconds)
            self.counts[sample.state] += 1
        return sample

    async def _sleep_until(self, at_seconds: float) -> None:
        await asyncio.sleep(max(0.0, at_seconds - self.elapsed_seconds))
