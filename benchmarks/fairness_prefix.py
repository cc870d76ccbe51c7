"""Whether an order by cached prefix inside a quantum pays: Mooncake's conversations on one engine.

The rule under test is DLPM's (Cao et al., arXiv 2501.14312): among the tenants whose deficit is
within one quantum of the least served, the request with the longest cached prefix goes next, rather
than the least served tenant's oldest. It costs at most one quantum of fairness. It is kept in the
product only if throughput rises by 1.15; until then it lives here.

All requests of the trace begin with the same block, so "tenant = first block" would be one tenant;
here a tenant is the first block that is not everybody's: a conversation. The engine is 8xH100/70B
with blocks of 512 tokens, as the trace has them, and gets more than it can serve. Costs charged
are true ones, so that nothing but the order differs. The ceiling is the same engine with a cache
that forgets nothing.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from multiprocessing import Pool
from pathlib import Path
from statistics import fmean

from report import Aim, Figure, figure
from rich.console import Console
from rich.table import Table

from tidegate.simulator.engine_model import (
    CALIBRATIONS,
    Calibration,
    Engine,
    EngineConfig,
    EngineRequest,
)
from tidegate.workload.traces import TraceRecord, read_mooncake_jsonl

FILE = "mooncake/conversation_trace.jsonl"
CALIBRATION = "h100_70b_tp8"
BLOCK_TOKENS = 512
REQUESTS = 2_000
QUANTUM_TOKENS = 2_048
"""The product's default."""
KEEP_FROM = 1.15

ORDERS: dict[str, float | None] = {
    "fair, by arrival": None,
    "by prefix inside a quantum": QUANTUM_TOKENS,
    "by prefix inside 16 quanta": 16 * QUANTUM_TOKENS,
    "by prefix alone": inf,
}
"""How far above the least tag a tenant may compete by its prefix; None: not at all."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run."""

    makespan_seconds: float
    hit_ratio: float
    mean_ttft_seconds: float
    worst_ttft_seconds: float
    lead_tokens: float
    """Most that a tenant was charged beyond one that waited."""
    largest_cost_tokens: int


class PrefixOrder:
    """Start-time fair queueing that may prefer cached prefixes within a window of tags."""

    def __init__(self, window: float | None, cached_tokens: Callable[[EngineRequest], int]) -> None:
        self._window = window
        self._cached_tokens = cached_tokens
        self._queues: dict[int, deque[EngineRequest]] = {}
        self._tags: dict[int, float] = {}
        self._virtual_time = 0.0
        self.lead = 0.0

    def __bool__(self) -> bool:
        return bool(self._queues)

    def push(self, tenant: int, request: EngineRequest) -> None:
        """It waits."""
        if tenant not in self._queues:
            self._queues[tenant] = deque()
            self._tags[tenant] = max(self._tags.get(tenant, 0.0), self._virtual_time)
        self._queues[tenant].append(request)

    def pop(self) -> EngineRequest:
        """The next to go; something must wait."""
        tenant, request = self._choose()
        self._virtual_time = max(self._virtual_time, self._tags[tenant])
        self._tags[tenant] += request.prompt_tokens + request.output_tokens_target
        self._queues[tenant].remove(request)
        if not self._queues[tenant]:
            del self._queues[tenant]
        others = [tag for other, tag in self._tags.items() if other in self._queues]
        if others:
            self.lead = max(self.lead, self._tags[tenant] - min(others))
        return request

    def _choose(self) -> tuple[int, EngineRequest]:
        by_age = min(self._queues, key=lambda t: (self._tags[t], self._queues[t][0].arrived_at))
        if self._window is None:
            return by_age, self._queues[by_age][0]
        limit = self._tags[by_age] + self._window
        competing = (
            (tenant, request)
            for tenant, queue in self._queues.items()
            if self._tags[tenant] <= limit
            for request in queue
        )
        return max(
            competing,
            key=lambda each: (
                self._cached_tokens(each[1]),
                -self._tags[each[0]],
                -each[1].arrived_at,
            ),
        )


def measure(arguments: argparse.Namespace, console: Console, traces: Path) -> Sequence[Figure]:
    """Runs each order once."""
    path = traces / FILE
    if not path.exists():
        return [figure("prefix: Mooncake's trace", None, "", why=f"{FILE} is missing in {traces}")]
    calibration = CALIBRATIONS[CALIBRATION]
    varied = [changed for _, _, changed in calibration.variations()]
    work = [(path, order, calibration) for order in ORDERS.values()]
    work += [(path, order, each) for each in varied for order in (None, QUANTUM_TOKENS)]
    with console.status("order by prefix"), Pool(arguments.jobs) as pool:
        outcomes = pool.starmap(_run, work, 1)
    runs = dict(zip(ORDERS, outcomes, strict=False))
    changed_runs = iter(outcomes[len(ORDERS) :])
    pairs = zip(changed_runs, changed_runs, strict=True)
    gains = [plain.makespan_seconds / ours.makespan_seconds for plain, ours in pairs]
    console.print(_table(runs))
    return _figures(runs, gains, path)


def _figures(runs: dict[str, Outcome], gains: Sequence[float], path: Path) -> list[Figure]:
    base = runs["fair, by arrival"]
    chosen = runs["by prefix inside a quantum"]
    alone = runs["by prefix alone"]
    gain = base.makespan_seconds / chosen.makespan_seconds
    ceiling = _ceiling(path)
    most = (1 - base.hit_ratio) / (1 - ceiling)
    bound = QUANTUM_TOKENS + chosen.largest_cost_tokens
    return [
        figure(
            "prefix: throughput gain of its order inside a quantum", gain, "ratio",
            Aim(">=", KEEP_FROM),
            f"hits {base.hit_ratio:.3f} to {chosen.hit_ratio:.3f}; a cache that forgets nothing "
            f"has {ceiling:.3f}, so no order gains more than {most:.2f}; by prefix alone "
            f"{base.makespan_seconds / alone.makespan_seconds:.2f}; each constant at 0.8 and 1.2: "
            f"{min(gains):.3f}..{max(gains):.3f}",
        ),
        figure(
            "prefix: largest lead over one that waits", chosen.lead_tokens, "tokens",
            Aim("<=", bound),
            f"aim: one request of {chosen.largest_cost_tokens:,} and one quantum; by arrival "
            f"{base.lead_tokens:,.0f}",
        ),
    ]  # fmt: skip


def _run(path: Path, window: float | None, calibration: Calibration) -> Outcome:
    engine = Engine(
        EngineConfig(
            step_time=calibration.step_time,
            num_gpu_blocks=calibration.kv_capacity_tokens // BLOCK_TOKENS,
            block_size=BLOCK_TOKENS,
        )
    )
    order = PrefixOrder(window, lambda request: _cached_tokens(engine, request))
    everything = list(_requests(path))
    arriving = iter(everything)
    following = next(arriving, None)
    now = 0.0
    while following is not None or order or engine.has_work:
        while following is not None and following[1].arrived_at <= now:
            order.push(*following)
            following = next(arriving, None)
        fed = sum(request.prompt_tokens for request in engine.waiting)
        while order and fed < engine.config.max_num_batched_tokens:
            request = order.pop()
            fed += request.prompt_tokens
            engine.add(request)
        if engine.has_work:
            now = engine.step(now).ends_at
        elif following is not None:
            now = following[1].arrived_at
    served = [request for _, request in everything]
    waits = [r.first_token_at - r.arrived_at for r in served if r.first_token_at is not None]
    totals = engine.totals
    return Outcome(
        makespan_seconds=now,
        hit_ratio=totals.prefix_hits_tokens / totals.prefix_queries_tokens,
        mean_ttft_seconds=fmean(waits),
        worst_ttft_seconds=max(waits),
        lead_tokens=order.lead,
        largest_cost_tokens=max(r.prompt_tokens + r.output_tokens_target for r in served),
    )


def _records(path: Path) -> Iterator[TraceRecord]:
    return islice(read_mooncake_jsonl(path), REQUESTS)


def _requests(path: Path) -> Iterator[tuple[int, EngineRequest]]:
    """Each with its tenant."""
    for number, record in enumerate(_records(path)):
        assert record.prefix is not None
        blocks = record.prefix.block_ids
        request = EngineRequest(
            request_id=str(number),
            prompt_tokens=max(1, record.prompt_tokens),
            output_tokens_target=max(1, record.output_tokens),
            arrived_at=record.at_seconds,
            prompt_block_hashes=blocks[: record.prompt_tokens // BLOCK_TOKENS],
            content_key=number,
        )
        yield blocks[1] if len(blocks) > 1 else -1 - number, request


def _cached_tokens(engine: Engine, request: EngineRequest) -> int:
    blocks = engine.kv.lookup(request.block_hash, (request.prompt_tokens - 1) // BLOCK_TOKENS)
    return len(blocks) * BLOCK_TOKENS


def _ceiling(path: Path) -> float:
    """Hit ratio of the requests in order of arrival with a cache that forgets nothing."""
    seen: set[int] = set()
    hits = tokens = 0
    for record in _records(path):
        assert record.prefix is not None
        blocks = record.prefix.block_ids[: record.prompt_tokens // BLOCK_TOKENS]
        known = 0
        while known < len(blocks) and blocks[known] in seen:
            known += 1
        hits += known * BLOCK_TOKENS
        tokens += record.prompt_tokens
        seen.update(blocks)
    return hits / tokens


def _table(runs: dict[str, Outcome]) -> Table:
    table = Table(title=f"Mooncake's first {REQUESTS:,} conversations", title_justify="left")
    for header in ("order", "makespan s", "prefix hits", "mean TTFT s", "worst TTFT s", "lead"):
        table.add_column(header, justify="left" if header == "order" else "right")
    for name, run in runs.items():
        table.add_row(
            name, f"{run.makespan_seconds:,.0f}", f"{run.hit_ratio:.3f}",
            f"{run.mean_ttft_seconds:,.0f}", f"{run.worst_ttft_seconds:,.0f}",
            f"{run.lead_tokens:,.0f}",
        )  # fmt: skip
    return table
