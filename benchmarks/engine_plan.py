"""What the plug-in adds to one call of vLLM's ``schedule()``; runs in vLLM's environment.

``PYTHON benchmarks/engine_plan.py MODEL``, with the repository's root and its ``tests`` folder on
PYTHONPATH: one JSON object. Two schedulers of vLLM's class are driven by hand through the same
requests, stock's and ours in turn, step by step: 256 run and 200 wait, four tiers in three KV
pools, statistics told to a socket that is read. Only ``schedule()`` is timed, in processor time of
its thread.
"""

from __future__ import annotations

import contextlib
import gc
import json
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from support.scheduler_host import SchedulerHost, engine_config
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from tidegate.vllm_plugin import TidegateAsyncScheduler, TidegateScheduler

RUNNING, WAITING = 256, 200
BLOCKS = 100_000
STEPS = 150
WARM_UP = 20
MOST_TO_FILL = 200
PROMPT_TOKENS, OUTPUT_TOKENS = 200, 1_000
KINDS: dict[str, tuple[type, type, int]] = {
    "sync": (Scheduler, TidegateScheduler, 1),
    "async": (AsyncScheduler, TidegateAsyncScheduler, 2),
}


def policy() -> dict[str, Any]:
    """Four tiers, the lower two evictable, in three KV pools."""
    tiers = [
        {"name": f"t{i}", "priority": -i, "reserved_percent": (50, 20, 10, 10)[i]}
        | ({"preemption": {"evictable": True}} if i > 1 else {})
        for i in range(4)
    ]
    pools = [
        {"name": "protected", "tiers": ["t0", "t1"], "percent": 60},
        {"name": "batch", "tiers": ["t2"], "percent": 20},
        {"name": "free", "tiers": ["t3"], "percent": 20},
    ]
    return {
        "version": 1, "generation": 1, "pool": "bench/pool", "model": {"name": "tiny"},
        "tiers": tiers, "kv_pools": pools,
    }  # fmt: skip


def timed(host: SchedulerHost, into: list[float]) -> None:
    """Make the host time its scheduler's ``schedule()``."""
    schedule = host.scheduler.schedule

    def measured(*arguments: Any) -> Any:
        began = time.thread_time()
        output = schedule(*arguments)
        into.append(time.thread_time() - began)
        return output

    host.scheduler.schedule = measured


def fill(host: SchedulerHost) -> None:
    """256 that decode for a long time, and 200 that wait for a seat."""
    for i in range(RUNNING + WAITING):
        host.add(f"r{i}", PROMPT_TOKENS, OUTPUT_TOKENS, f"t{i % 4}")
    for _ in range(MOST_TO_FILL):
        if len(host.running) == RUNNING and not host.step().prefill:
            return
        host.step()
    raise RuntimeError(f"only {len(host.running)} run")


def measure(model: str, variant: str, folder: Path) -> dict[str, float]:
    """Seconds of one ``schedule()``: stock's, ours, and what ours spends on planning."""
    stock_kind, our_kind, depth = KINDS[variant]
    size = {"max_num_seqs": RUNNING, "max_num_batched_tokens": 8192}
    path = str(folder / "steps")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        receiver.setblocking(False)
        stock = SchedulerHost(stock_kind, engine_config(model, **size), BLOCKS, depth=depth)
        ours = SchedulerHost(
            our_kind, engine_config(model, **size), BLOCKS, depth=depth, policy=policy(),
            folder=folder, statistics=path,
        )  # fmt: skip
        spent: dict[str, list[float]] = {"stock": [], "ours": []}
        for name, host in (("stock", stock), ("ours", ours)):
            fill(host)
            timed(host, spent[name])
        gc.collect()
        gc.freeze()
        for _ in range(WARM_UP + STEPS):
            stock.step()
            ours.step()
            with contextlib.suppress(BlockingIOError):
                while True:
                    receiver.recv(1 << 20)
    told = {name: sorted(seconds[WARM_UP:]) for name, seconds in spent.items()}
    return {
        "stock": statistics.median(told["stock"]),
        "ours": statistics.median(told["ours"]),
        "stock_p99": told["stock"][int(STEPS * 0.99)],
        "ours_p99": told["ours"][int(STEPS * 0.99)],
        "planned": ours.scheduler.tidegate.counters.planned_steps,
        "failures": ours.scheduler.tidegate.counters.failures.total(),
    }


def main(model: str) -> None:
    """Both classes."""
    told = {}
    for variant in KINDS:
        with tempfile.TemporaryDirectory(prefix="tg-") as folder:
            told[variant] = measure(model, variant, Path(folder))
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
