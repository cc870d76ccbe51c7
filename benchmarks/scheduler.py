"""What a decision of the scheduler costs: time at 10,000 tenants, memory, step plan, simulator.

A decision is submit, next and finish: what one request costs from its arrival to its end, without
rate limits. The queue is filled first and stays as long as it is; 256 requests are in flight, and
the one that ends is the oldest of them. Four tiers with reservations, tenants drawn at random,
every second request with a deadline of its own, weights 1 to 5. Sizes are shuffled by a fixed seed.

Few and many tenants are measured in turn, in the same process, so that a busy machine slows both.
The garbage collector runs as it does in the sidecar: its passes over what waits show in the longest
decision and hardly in the median.

A step plan is timed over drawn states of an engine (``step_plan_states``). The simulator's speed is
that of the mixed node with about 175 requests in flight under our policy, sidecar and plug-in
included, over its processor time.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
import tracemalloc
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from resource import RUSAGE_SELF, getrusage

from report import Aim, Figure, benchmark, figure
from rich.console import Console
from step_plan_states import RUNNING, WAITING, step_policy, step_state

from tidegate.scheduling import contracts
from tidegate.scheduling.engine_time import RequestStep
from tidegate.scheduling.request import Request, Usage
from tidegate.scheduling.scheduler import Scheduler
from tidegate.scheduling.step_plan import StepPlanner
from tidegate.scheduling.step_time_fit import decode_work
from tidegate.simulator.simulation.node_policy import node_policy, one_engine
from tidegate.simulator.simulation.system import Scheduling, simulate
from tidegate.workload.clients.mixed_node import MixedLoad, mixed_node

IN_FLIGHT = 256
ROUNDS = 4
_RESERVED_PERCENT = (70, 15, 10, 5)
_SECONDS_APART = 0.0005
_ABOUT_175 = MixedLoad(t3_in_flight=140)


@dataclass(frozen=True, slots=True)
class Timed:
    """Decisions of one scheduler, in nanoseconds, rising."""

    nanoseconds: list[int]

    def quantile_us(self, ratio: float) -> float:
        """In microseconds."""
        return self.nanoseconds[min(len(self.nanoseconds) - 1, int(ratio * len(self)))] / 1e3

    def __len__(self) -> int:
        return len(self.nanoseconds)


class Host:
    """One scheduler with a queue of constant length.

    ``timed``: it reports the engine's steps, one to begin with; then no request has a deadline, as
    the throttle would refuse those that such a queue cannot meet.
    """

    def __init__(self, tenants: int, queued: int, timed: bool = False) -> None:
        self._random = random.Random(1)
        self._timed = timed
        self._names = [f"namespace/tenant{i}" for i in range(tenants)]
        self._scheduler = Scheduler(_policy(self._names), 0.0, timed)
        self._requests = self._generate()
        self._flying: deque[Request] = deque()
        self._now = 0.0
        for request in islice(self._requests, queued + IN_FLIGHT):
            self._submit(request)
        for _ in range(IN_FLIGHT):
            self._flying.append(self._next())
        if timed:
            rows = [RequestStep(one.id, decode_work(1_000)) for one in self._flying]
            self._scheduler.step(0.03, rows)

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return self._scheduler.queued()

    def decide(self, count: int) -> Iterator[int]:
        """So many decisions; the nanoseconds of each."""
        scheduler, clock = self._scheduler, time.perf_counter_ns
        for request in list(islice(self._requests, count)):
            self._now += _SECONDS_APART
            now, ended = self._now, self._flying.popleft()
            usage = Usage(ended.prompt_tokens, min(ended.max_output_tokens, 300))
            started = clock()
            refusal = scheduler.submit(request, now)
            dispatched = scheduler.next(now)
            scheduler.finish(ended.id, usage, now)
            yield clock() - started
            if refusal is not None or dispatched is None:
                raise RuntimeError(f"a decision failed: {refusal}")
            self._flying.append(dispatched)

    def _submit(self, request: Request) -> None:
        refusal = self._scheduler.submit(request, self._now)
        if refusal is not None:
            raise RuntimeError(f"a request was refused: {refusal}")

    def _next(self) -> Request:
        request = self._scheduler.next(self._now)
        if request is None:
            raise RuntimeError("nothing to dispatch")
        return request

    def _generate(self) -> Iterator[Request]:
        number = 0
        draw = self._random
        while True:
            number += 1
            yield Request(
                id=f"{number:032x}",
                tenant=draw.choice(self._names),
                prompt_tokens=draw.randrange(50, 3_000),
                max_output_tokens=draw.randrange(16, 1_024),
                body_bytes=draw.randrange(1_000, 20_000),
                deadline=None
                if number % 2 or self._timed
                else self._now + draw.uniform(600, 3_000),
            )


def _policy(names: Sequence[str]) -> contracts.Policy:
    queue = contracts.QueueLimits(max_requests=1_000_000, max_bytes=2**40, max_wait_seconds=3_600.0)
    tiers = tuple(
        contracts.TierPolicy(name=f"t{i}", priority=-i, reserved_percent=percent, queue=queue)
        for i, percent in enumerate(_RESERVED_PERCENT)
    )
    return contracts.Policy(
        version=contracts.POLICY_VERSION,
        generation=1,
        pool="bench/pool",
        model=contracts.ModelPolicy(name="model"),
        tiers=tiers,
        tenants=tuple(
            contracts.TenantPolicy(name=name, tier=tiers[i % len(tiers)].name, weight=1 + i % 5)
            for i, name in enumerate(names)
        ),
    )


@contextmanager
def collector_passes() -> Iterator[list[float]]:
    """Milliseconds of each pass of the garbage collector meanwhile."""
    passes: list[float] = []
    began = 0.0

    def heard(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = time.perf_counter()
        else:
            passes.append(1e3 * (time.perf_counter() - began))

    gc.callbacks.append(heard)
    try:
        yield passes
    finally:
        gc.callbacks.remove(heard)


def decisions(few: int, many: int, queued: int, count: int) -> tuple[Timed, Timed, str]:
    """So many decisions with few and with many tenants, in turn; and what else there was."""
    hosts = Host(few, queued), Host(many, queued)
    spent: tuple[list[int], list[int]] = ([], [])
    switches = getrusage(RUSAGE_SELF).ru_nivcsw
    with collector_passes() as passes:
        for _ in range(ROUNDS):
            for host, nanoseconds in zip(hosts, spent, strict=True):
                nanoseconds.extend(host.decide(count // ROUNDS))
    switches = getrusage(RUSAGE_SELF).ru_nivcsw - switches
    others = (
        f"in {2 * count:,} decisions others took the core {switches:,} times; the garbage "
        f"collector's longest pass took {max(passes, default=0.0):.0f} ms"
    )
    return Timed(sorted(spent[0])), Timed(sorted(spent[1])), others


def timed_decisions(tenants: int, queued: int, count: int) -> Timed:
    """The same of a host that reports the engine's steps."""
    return Timed(sorted(Host(tenants, queued, timed=True).decide(count)))


def bytes_per_queued_request(tenants: int, queued: int) -> float:
    """What each request that waits holds, its own fields, id and numbers included."""
    host = Host(tenants, 0)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for request in islice(host._requests, queued):
            host._submit(request)
        return (tracemalloc.get_traced_memory()[0] - before) / queued
    finally:
        tracemalloc.stop()


def step_plans(states: int, each: int) -> Timed:
    """Plans of so many states, each planned so many times by a planner of its own."""
    nanoseconds = []
    for seed in range(states):
        planner, state = StepPlanner(step_policy()), step_state(seed)
        for _ in range(each):
            started = time.perf_counter_ns()
            planner.plan(state)
            nanoseconds.append(time.perf_counter_ns() - started)
    return Timed(sorted(nanoseconds))


def simulator_speed(minutes: int, seed: int = 1) -> tuple[float, float]:
    """Simulated over processor time after the first minute, and requests in flight on average."""
    workload = mixed_node(_ABOUT_175, seed)
    system = one_engine(Scheduling.TIDEGATE, node_policy(workload))
    marks: list[tuple[float, float]] = []
    result = simulate(
        system,
        workload,
        seed=seed,
        duration_seconds=60.0 * minutes,
        warmup_seconds=60.0,
        progress=lambda now: marks.append((now, time.process_time())),
    )
    (begin, began), (end, ended) = next(mark for mark in marks if mark[0] >= 60.0), marks[-1]
    in_flight = sum(
        min(end, record.finished or end) - max(begin, record.arrival)
        for record in result.records
        if record.arrival < end and (record.finished or end) > begin
    )
    return (end - begin) / (ended - began), in_flight / (end - begin)


def options(parser: argparse.ArgumentParser) -> None:
    """The benchmark's own."""
    parser.add_argument("--tenants", type=int, default=10_000, help="the many")
    parser.add_argument("--queued", type=int, default=100_000, help="requests that wait")
    parser.add_argument("--decisions", type=int, default=40_000, help="of each")
    parser.add_argument("--minutes", type=int, default=5, help="simulated, the first not measured")


def measure(arguments: argparse.Namespace, console: Console) -> Sequence[Figure]:
    """Decisions, memory, step plan, simulator."""
    shape = f"{arguments.tenants:,} tenants, {arguments.queued:,} queued"
    few, many, others = decisions(100, arguments.tenants, arguments.queued, arguments.decisions)
    small, _, _ = decisions(100, 100, 1_000, arguments.decisions // ROUNDS)
    with_time = timed_decisions(arguments.tenants, arguments.queued, arguments.decisions // ROUNDS)
    middle = many.quantile_us(0.5)
    console.print(f"{len(many):,} decisions with {shape}", style="dim", highlight=False)
    figures = [
        figure(f"a decision, {shape}, median", middle, "us", Aim("<=", 15)),
        figure(
            f"a decision, {shape}, p99",
            many.quantile_us(0.99),
            "us",
            Aim("<=", 40),
            others,
        ),
        figure(
            "the same over 100 tenants with as many queued",
            middle / few.quantile_us(0.5),
            "ratio",
            Aim("<=", 2),
            f"100 tenants: median {few.quantile_us(0.5):.1f} us, p99 {few.quantile_us(0.99):.1f}",
        ),
        figure(
            f"a decision, {shape}, longest",
            many.quantile_us(1.0) / 1e3,
            "ms",
            why="the garbage collector, or another program",
        ),
        figure(
            "a decision, 100 tenants, 1,000 queued, median",
            small.quantile_us(0.5),
            "us",
            why="what the code takes; more is fetching what does not fit the caches",
        ),
        figure(
            f"a decision with EngineTime and finish estimates, {shape}, median",
            with_time.quantile_us(0.5),
            "us",
            why=f"for hosts that report steps; p99 {with_time.quantile_us(0.99):.0f} us",
        ),
        figure(
            "memory of a queued request",
            bytes_per_queued_request(arguments.tenants, arguments.queued),
            "bytes",
            Aim("<=", 1_000),
        ),
    ]
    plans = step_plans(states=40, each=50)
    speed, in_flight = simulator_speed(arguments.minutes)
    return [
        *figures,
        figure(
            f"a step plan, {RUNNING} running and {WAITING} waiting, median",
            plans.quantile_us(0.5) / 1e3,
            "ms",
            Aim("<=", 0.2),
            f"p99 {plans.quantile_us(0.99) / 1e3:.2f} ms",
        ),
        figure(
            "the simulator, mixed node",
            speed,
            "x real time",
            Aim(">=", 60),
            f"{in_flight:.0f} requests in flight on average; of processor time",
        ),
    ]


if __name__ == "__main__":
    sys.exit(benchmark("scheduler", __doc__ or "", measure, options))
