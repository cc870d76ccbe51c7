"""What the operator does with many pools: how soon, how much it writes, and what it takes.

On a local cluster with its real API server and controllers. Twenty tiers, ten tenants for each
pool, and one pool that serves all tenants. Five pools have real pods, sidecar before fake engine;
the others' pods and sidecars are this process (`control_plane_sidecars`). The operator is a process
of its own with the settings it has by default. Done for each number of pools, from an empty
cluster.

A change is a tenant's weight or a tier's priority. Its time runs from when the API server has taken
it until a sidecar that it concerns has the policy; the 99th percentile is over all changes and all
such sidecars. Writes are those of the API server's audit log.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
from control_plane_real import RealSidecars
from control_plane_sidecars import Sidecar, Sidecars, status_bytes
from control_plane_site import (
    REAL_PODS,
    TIERS,
    Audit,
    Operator,
    Size,
    cluster_of,
    create_all,
    tenant,
    tier,
)
from report import Aim, Figure, benchmark, figure
from rich.console import Console
from tidegate_operator.kinds import SERVING_POOL, TENANT, TENANT_TIER, Kind
from tidegate_operator.kube import Json, Kube, load_configuration

from tidegate.local_cluster.cluster import LocalCluster

CONVERGED_SECONDS = 1_800.0
CHANGED_SECONDS = 120.0
QUIET_SECONDS = 20.0
"""Without a write: what was under way is over. More than the interval of a pool's figures."""
WINDOW_SECONDS = 10
"""Over which writes a second are counted."""
KINDS = (SERVING_POOL, TENANT, TENANT_TIER)


def options(parser: argparse.ArgumentParser) -> None:
    """The benchmark's own."""
    parser.add_argument("--pools", type=int, nargs="+", default=[20, 200], help="multiples of ten")
    parser.add_argument("--changes", type=int, default=20, help="of tenants; half as many of tiers")
    parser.add_argument("--steady-seconds", type=float, default=300.0)
    parser.add_argument("--load-seconds", type=float, default=120.0)
    parser.add_argument("--quick", action="store_true", help="20 pools, few changes, a minute each")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="cProfile of the operator")


@dataclass(slots=True)
class Run:
    """What was measured with so many pools."""

    served_seconds: float = 0.0
    """Until every sidecar had its policy."""
    converged_seconds: float = 0.0
    """Until every status was written."""
    first_writes: int = 0
    tenant_seconds: list[float] = field(default_factory=list)
    tier_seconds: list[float] = field(default_factory=list)
    steady_writes: Counter[str] = field(default_factory=Counter)
    steady_cpu_percent: float = 0.0
    load_writes_per_second: float = 0.0
    load_cpu_percent: float = 0.0
    status_bytes: int = 0
    peak_mb: float = 0.0


class Bench:
    """One run."""

    def __init__(self, cluster: LocalCluster, kube: Kube, size: Size, operator: Operator) -> None:
        self._cluster = cluster
        self._kube = kube
        self._size = size
        self._operator = operator
        self._real = RealSidecars(kube, size.namespaces[0])
        self.sidecars = Sidecars(kube)

    async def converge(self, run: Run, since: float, audit: Audit) -> None:
        """From the operator's start."""
        everyone = self._size.pools - REAL_PODS

        async def served() -> bool:
            having = sum(self._has_all(one) for one in self.sidecars.by_address.values())
            return having == everyone and await self._real.all_serve()

        async def written() -> bool:
            lists = [await self._kube.list(kind) for kind in KINDS]
            return all(_is_ready(obj) for objects in lists for obj in objects)

        await self._until(served, CONVERGED_SECONDS)
        run.served_seconds = time.monotonic() - since
        await self._until(written, CONVERGED_SECONDS, pause_seconds=2.0)
        run.converged_seconds = time.monotonic() - since
        run.first_writes = len(audit.writes())

    def _has_all(self, sidecar: Sidecar) -> bool:
        return len(sidecar.weights) == self._tenants_of(sidecar.pool)

    def _tenants_of(self, pool: str) -> int:
        everyone = pool == f"{self._size.namespaces[0]}/pool-0"
        return self._size.tenants // (1 if everyone else len(self._size.namespaces))

    async def change_tenant(self, number: int) -> list[float]:
        """Give one tenant another weight; the seconds until each sidecar that serves it had it."""
        namespace = self._size.namespaces[number % len(self._size.namespaces)]
        body, weight = tenant(namespace, 3 * number % 100, 2 + number), 2 + number
        name = f"{namespace}/{body['metadata']['name']}"
        concerned = {s.address for s in self.sidecars.by_address.values() if name in s.weights}
        is_real = namespace == self._size.namespaces[0]
        return await self._change(
            TENANT, body, concerned, lambda sidecar: sidecar.weights.get(name) == weight, is_real
        )

    async def change_tier(self, number: int) -> list[float]:
        """Give one tier another priority, which concerns every sidecar."""
        body, priority = tier(number % TIERS, 100 + number), 100 + number
        name = body["metadata"]["name"]
        concerned = set(self.sidecars.by_address)
        return await self._change(
            TENANT_TIER, body, concerned, lambda s: s.priorities.get(name) == priority, True
        )

    async def _change(
        self,
        kind: Kind,
        body: Json,
        concerned: set[str],
        has_it: Callable[[Sidecar], bool],
        is_real: bool,
    ) -> list[float]:
        waiting, took, done = set(concerned), list[float](), asyncio.Event()
        since = 0.0

        def taken(sidecar: Sidecar) -> None:
            if sidecar.address in waiting and has_it(sidecar):
                waiting.discard(sidecar.address)
                took.append(max(0.0, time.monotonic() - since))
                if not waiting:
                    done.set()

        async with self._real.watched() if is_real else _nothing() as real:
            self.sidecars.taken = taken
            since = time.monotonic()
            await self._kube.apply(kind, body)
            since = time.monotonic()
            try:
                async with asyncio.timeout(CHANGED_SECONDS):
                    await done.wait()
                    took += [await reached - since for reached in real]
            except TimeoutError:
                self._operator.check()
                took += [CHANGED_SECONDS] * max(1, len(waiting))
        self.sidecars.taken = lambda _: None
        return took

    async def quiet(self) -> None:
        """Until nothing was written for a while."""
        audit, begun = Audit(self._cluster), time.monotonic()
        while True:
            await asyncio.sleep(QUIET_SECONDS)
            self._operator.check()
            if not audit.writes() or time.monotonic() - begun > CONVERGED_SECONDS:
                return
            audit = Audit(self._cluster)

    async def steady(self, run: Run, seconds: float) -> None:
        """Nothing happens: what is written all the same."""
        audit, cpu = Audit(self._cluster), self._operator.processor_seconds()
        await asyncio.sleep(seconds)
        self._operator.check()
        run.steady_cpu_percent = 100 * (self._operator.processor_seconds() - cpu) / seconds
        run.steady_writes = Counter(
            f"{line['verb']} {line['objectRef']['resource']}" for line in audit.writes()
        )

    async def load(self, run: Run, seconds: float) -> None:
        """Every tenant of every pool makes requests."""
        audit, cpu = Audit(self._cluster), self._operator.processor_seconds()
        self.sidecars.busy = True
        await asyncio.sleep(seconds)
        self._operator.check()
        self.sidecars.busy = False
        run.load_cpu_percent = 100 * (self._operator.processor_seconds() - cpu) / seconds
        run.load_writes_per_second = _busiest(audit.writes()) / WINDOW_SECONDS
        lists = [await self._kube.list(kind) for kind in KINDS]
        run.status_bytes = max(status_bytes(obj) for objects in lists for obj in objects)
        _, run.peak_mb = self._operator.memory_mb()

    async def _until(
        self, check: Callable[[], Awaitable[bool]], seconds: float, pause_seconds: float = 0.2
    ) -> None:
        deadline = time.monotonic() + seconds
        while not await check():
            self._operator.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"not converged in {seconds:.0f} s")
            await asyncio.sleep(pause_seconds)


def _is_ready(obj: Json) -> bool:
    conditions = {c["type"]: c["status"] for c in (obj.get("status") or {}).get("conditions") or ()}
    wanted = ["Ready"] + (["PolicyApplied"] if "model" in obj["spec"] else [])
    return all(conditions.get(kind) == "True" for kind in wanted)


def _busiest(writes: Sequence[dict[str, Any]]) -> int:
    """The most status writes in any window."""
    at = sorted(
        datetime.fromisoformat(line["requestReceivedTimestamp"]).timestamp()
        for line in writes
        if line["objectRef"].get("subresource") == "status"
    )
    first, most = 0, 0
    for last, moment in enumerate(at):
        while moment - at[first] >= WINDOW_SECONDS:
            first += 1
        most = max(most, last - first + 1)
    return most


@asynccontextmanager
async def _nothing() -> AsyncIterator[list[asyncio.Task[float]]]:
    yield []


async def measured(arguments: argparse.Namespace, pools: int, say: Callable[[str], None]) -> Run:
    """One run, from an empty cluster."""
    size, run = Size(pools), Run()
    with cluster_of(str(pools)) as cluster, tempfile.TemporaryDirectory(prefix="tg-bench-") as name:
        configuration = await load_configuration(str(cluster.kubeconfig))
        async with Kube(configuration) as kube:
            await create_all(kube, size)
            say(f"{pools} pools, {size.tenants} tenants, {TIERS} tiers are there")
            audit, since = Audit(cluster), time.monotonic()
            operator = Operator(cluster, Path(name), arguments.profile)
            bench = Bench(cluster, kube, size, operator)
            playing = asyncio.create_task(bench.sidecars.run())
            try:
                await bench.converge(run, since, audit)
                say(f"served after {run.served_seconds:.1f} s")
                say(f"every status written after {run.converged_seconds:.1f} s")
                for number in range(arguments.changes):
                    run.tenant_seconds += await bench.change_tenant(number)
                for number in range(arguments.changes // 2):
                    run.tier_seconds += await bench.change_tier(number)
                for told in (run.tenant_seconds, run.tier_seconds):
                    say(f"changes: p99 {_p99(told):.2f} s of {len(told)}")
                await bench.quiet()
                await bench.steady(run, arguments.steady_seconds)
                say(f"writes in quiet: {dict(run.steady_writes)}")
                await bench.load(run, arguments.load_seconds)
            finally:
                playing.cancel()
                await asyncio.gather(playing, return_exceptions=True)
                operator.stop()
    return run


def _p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def measure(arguments: argparse.Namespace, console: Console) -> Sequence[Figure]:
    """All figures of each number of pools."""
    if arguments.quick:
        arguments.pools, arguments.changes = [20], 6
        arguments.steady_seconds = arguments.load_seconds = 60.0
    figures: list[Figure] = []
    for pools in arguments.pools:

        def say(text: str, pools: int = pools) -> None:
            console.print(f"{pools} pools: {text}", style="dim", highlight=False)

        try:
            figures += _figures(pools, asyncio.run(measured(arguments, pools, say)), arguments)
        except (OSError, RuntimeError, TimeoutError, aiohttp.ClientError) as error:
            why = f"{type(error).__name__}: {error}"
            figures.append(figure(f"{pools} pools", None, "", None, why))
    return figures


def _figures(pools: int, run: Run, arguments: argparse.Namespace) -> list[Figure]:
    steady = sum(run.steady_writes.values())
    written = ", ".join(f"{count} {what}" for what, count in run.steady_writes.items())
    of_pools = f"{pools} pools"
    return [
        figure(f"{of_pools}: start to every sidecar served", run.served_seconds, "s"),
        figure(
            f"{of_pools}: start to every status written",
            run.converged_seconds,
            "s",
            why=f"{run.first_writes} writes in all; at most 10 a second are of status",
        ),
        figure(
            f"{of_pools}: tenant's change to sidecar, p99",
            _p99(run.tenant_seconds),
            "s",
            Aim("<=", 5),
            f"median {statistics.median(run.tenant_seconds):.2f} s",
        ),
        figure(
            f"{of_pools}: tier's change to every sidecar, p99",
            _p99(run.tier_seconds),
            "s",
            Aim("<=", 5),
            f"median {statistics.median(run.tier_seconds):.2f} s; each is one of all pools",
        ),
        figure(
            f"{of_pools}: writes in {arguments.steady_seconds:g} quiet seconds",
            steady,
            "writes",
            Aim("<=", 0),
            written,
        ),
        figure(f"{of_pools}: operator's CPU in quiet", run.steady_cpu_percent, "% of a core"),
        figure(
            f"{of_pools}: status writes under load",
            run.load_writes_per_second,
            "1/s",
            Aim("<=", 10),
            f"the most in any {WINDOW_SECONDS} s",
        ),
        figure(f"{of_pools}: operator's CPU under load", run.load_cpu_percent, "% of a core"),
        figure(f"{of_pools}: largest status", run.status_bytes / 1024, "kB", Aim("<=", 32)),
        figure(f"{of_pools}: operator's memory at most", run.peak_mb, "MB", Aim("<=", 300)),
    ]


if __name__ == "__main__":
    raise SystemExit(benchmark("control-plane", __doc__ or "", measure, options))
