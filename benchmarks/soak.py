"""Soak: mixed tenants, clients that hang up, engine restarts, reloads, key rotations, for minutes.

The real sidecar process before the fake engine (``soak_stack``), under callers of every kind
(``soak_clients``). Each second its memory, open files and tasks are read; at the end nothing may be
in hand, and what the clients saw is held against the usage records (``soak_judge``).

Memory is judged by a line through the second half of the run, in bytes for each request served
since: what grows with requests is a leak, whatever its size. Files and tasks are compared at rest,
before the first request and after the last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import aiohttp
from report import Aim, Figure, benchmark, figure
from rich.console import Console
from soak_clients import PATIENCE_SECONDS, Callers
from soak_judge import LimitUse, limit_use, outcome_breaches, unexplained
from soak_stack import METERED, TENANTS, Metrics, Stack

from tidegate.scheduling.contracts import UsageRecord, loads

CALLERS_OF_TENANT = 5
REST_SECONDS = 30.0
"""Idle connections to the engine are closed within a few seconds."""
SPARE_FILES = 4
"""Connections that may be in use by the sidecar's own watch, or ours, at that moment."""
SPARE_TASKS = 2
ZERO_AT_REST = (
    "tidegate_queue_size",
    "tidegate_queue_bytes",
    "tidegate_requests_running",
    "tidegate_gate_not_started",
)


@dataclass(frozen=True, slots=True)
class Sample:
    """What the process had at one moment."""

    at: float
    resident_bytes: int
    files: int
    requests: float


@dataclass(slots=True)
class Soak:
    """What a run left behind."""

    seconds: float
    stack: Stack
    samples: list[Sample] = field(default_factory=list)
    files_before: int = 0
    files_after: int = 0
    tasks_before: float = 0
    tasks_after: float = 0
    in_hand: dict[str, float] = field(default_factory=dict)
    """What was not zero at the end."""
    counted: Counter[tuple[str, str]] = field(default_factory=Counter)
    lost_records: float = 0
    exit_status: int | None = None
    records: list[UsageRecord] = field(default_factory=list)


def options(parser: argparse.ArgumentParser) -> None:
    """The benchmark's own."""
    parser.add_argument("--seconds", type=float, default=1_200.0, help="of load (1200)")
    parser.add_argument("--every", type=float, default=4.0, help="seconds between changes (4)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep records, views and logs here"
    )


def measure(arguments: argparse.Namespace, console: Console) -> Sequence[Figure]:
    """Runs it; its figures."""
    with tempfile.TemporaryDirectory(prefix="tg-soak-") as folder:
        try:
            soak = asyncio.run(soaked(Path(folder), arguments))
        except (OSError, RuntimeError, TimeoutError, aiohttp.ClientError) as error:
            return [figure("soak", None, "", why=f"{type(error).__name__}: {error}")]
    return _figures(soak, console)


async def soaked(folder: Path, arguments: argparse.Namespace) -> Soak:
    """Load for so long, then rest, then the end."""
    timeout = aiohttp.ClientTimeout(total=PATIENCE_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as own:
        stack = Stack(folder, own, arguments.seed)
        async with stack.running():
            soak = Soak(arguments.seconds, stack)
            soak.files_before, soak.tasks_before = await _at_rest(stack)
            await _load(soak, arguments)
            await _rest(soak)
            soak.exit_status = await stack.end()
        content = stack.usage.read_bytes()
        soak.records = [loads(UsageRecord, line) for line in content.splitlines()]
        if arguments.keep is not None:
            arguments.keep.mkdir(parents=True, exist_ok=True)
            for name in ("usage.jsonl", "sidecar.log", "engine.log"):
                (arguments.keep / name).write_bytes((folder / name).read_bytes())
            views = [json.dumps(asdict(view) | {"key": ""}) + "\n" for view in stack.views]
            (arguments.keep / "views.jsonl").write_text("".join(views))
    return soak


async def _load(soak: Soak, arguments: argparse.Namespace) -> None:
    stack = soak.stack
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        callers = Callers(stack, session, arguments.seed)
        calling = asyncio.create_task(callers.run(CALLERS_OF_TENANT))
        trouble = asyncio.create_task(stack.trouble(arguments.every))
        end = time.monotonic() + arguments.seconds
        while time.monotonic() < end and not trouble.done():
            resident, files = stack.resources()
            soak.samples.append(Sample(time.monotonic(), resident, files, len(stack.views)))
            await asyncio.sleep(1.0)
        callers.running = False
        await calling
        stack.stopping.set()
        await trouble


async def _rest(soak: Soak) -> None:
    """Wait until nothing is in hand, and tell what still is."""
    stack = soak.stack
    deadline = time.monotonic() + REST_SECONDS
    while time.monotonic() < deadline:
        soak.files_after, soak.tasks_after = await _at_rest(stack)
        soak.in_hand = await _in_hand(stack)
        if (
            not soak.in_hand
            and soak.files_after <= soak.files_before + SPARE_FILES
            and soak.tasks_after <= soak.tasks_before + SPARE_TASKS
        ):
            break
        await asyncio.sleep(0.5)
    metrics = await stack.metrics()
    # The series of the visitor go with it, and its last requests count as nobody's.
    for labels, value in metrics["tidegate_requests_total"]:
        if labels["tenant"] in TENANTS:
            soak.counted[labels["tenant"], labels["outcome"]] += int(value)
    soak.lost_records = _sum(metrics, "tidegate_usage_records_dropped_total")


async def _at_rest(stack: Stack) -> tuple[int, float]:
    tasks = _sum(await stack.metrics(), "tidegate_event_loop_tasks")
    return stack.resources()[1], tasks


def _sum(metrics: Metrics, name: str) -> float:
    return sum(value for _, value in metrics[name])


async def _in_hand(stack: Stack) -> dict[str, float]:
    metrics = await stack.metrics()
    found = {name: _sum(metrics, name) for name in ZERO_AT_REST}
    status = await stack.status()
    found["engine running"] = status["engine"]["running"] or 0
    found["engine waiting"] = status["engine"]["waiting"] or 0
    return {name: value for name, value in found.items() if value}


def _figures(soak: Soak, console: Console) -> list[Figure]:
    stack, views, records = soak.stack, soak.stack.views, soak.records
    said = outcome_breaches(views, records, soak.counted)
    lost = unexplained(views, records, stack.engine_down, stack.revoked)
    for line in [*said[:10], *lost[:10], *stack.faults[:10]]:
        console.print(line, style="red", highlight=False)
    ended = Counter(record.outcome for record in records)
    outcomes = ", ".join(f"{count} {name}" for name, count in ended.most_common())
    changes = ", ".join(f"{count} {name}" for name, count in sorted(stack.changes.items()))
    in_hand = ", ".join(f"{name} {value:g}" for name, value in soak.in_hand.items())
    none = Aim("<=", 0)
    growth = bytes_per_request(soak.samples)
    return [
        figure("requests", len(views), "", why=f"in {soak.seconds:.0f} s: {outcomes}"),
        figure("changes", sum(stack.changes.values()), "", Aim(">=", 5), changes),
        figure("changes that did not act", len(stack.faults), "", none),
        figure("requests without one true outcome", len(said), "", none),
        figure("requests lost without a cause", len(lost), "", none),
        figure("usage records lost", soak.lost_records, "", none),
        figure("not zero at the end", len(soak.in_hand), "", none, in_hand),
        figure(
            "tasks more than before",
            soak.tasks_after - soak.tasks_before,
            "",
            Aim("<=", SPARE_TASKS),
            f"{soak.tasks_before:.0f} before",
        ),
        figure(
            "open files more than before",
            soak.files_after - soak.files_before,
            "",
            Aim("<=", SPARE_FILES),
            f"{soak.files_before} before, {max(s.files for s in soak.samples)} at most",
        ),
        figure(
            "memory's growth for each request, second half",
            growth,
            "bytes",
            Aim("<=", growth_bound(soak.samples)),
            f"{soak.samples[0].resident_bytes / 2**20:.0f} MiB at first, "
            f"{soak.samples[-1].resident_bytes / 2**20:.0f} at last",
        ),
        *_limit_figures(soak),
        figure(
            "exit status after SIGTERM",
            soak.exit_status,
            "",
            none,
            "" if soak.exit_status is not None else "it did not end",
        ),
    ]


def _limit_figures(soak: Soak) -> list[Figure]:
    used: list[LimitUse] = [
        limit_use([record for record in soak.records if record.tenant == tenant], METERED)
        for tenant, tier in TENANTS.items()
        if tier == "metered"
    ]
    assert METERED.requests is not None
    return [
        figure(
            "tokens beyond a limit, of what those in flight may take",
            max(one.excess_of_in_flight for one in used),
            "ratio",
            Aim("<=", 1),
            f"at most {max(one.tokens_settled for one in used)} settled of {METERED.tokens}",
        ),
        figure(
            "requests in a window with a limit",
            max(one.requests for one in used),
            "",
            Aim("<=", METERED.requests),
        ),
        figure(
            "tokens settled in the fullest window, of the limit",
            max(one.tokens_settled for one in used) / (METERED.tokens or 1),
            "ratio",
            Aim(">=", 0.5),
            "else the limit was not tried",
        ),
    ]


def bytes_per_request(samples: Sequence[Sample]) -> float:
    """The slope of a line through the second half (least squares), over requests."""
    half = samples[len(samples) // 2 :]
    slope, _ = statistics.linear_regression(
        [sample.requests for sample in half], [float(sample.resident_bytes) for sample in half]
    )
    return slope


def growth_bound(samples: Sequence[Sample]) -> float:
    """100 bytes, and what 8 MiB of an allocator's noise make of so few requests."""
    half = samples[len(samples) // 2 :]
    return 100.0 + 8 * 2**20 / max(half[-1].requests - half[0].requests, 1)


if __name__ == "__main__":
    sys.exit(benchmark("soak", (__doc__ or "").splitlines()[0], measure, options))
