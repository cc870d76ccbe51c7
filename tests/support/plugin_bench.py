"""What the cases of ``plugin_cases`` share: who runs them, policies, and what a host tells.

They run in vLLM's environment (``plugin_runner.py``) and are listed in ours, so this imports no
vLLM.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.scheduling.contracts import StepStatistics, loads

if TYPE_CHECKING:
    from support.scheduler_host import SchedulerHost

BATCHED_TOKENS = 2048


class Bench(Protocol):
    """One variant: the plain class, or the asynchronous one with two steps in flight."""

    is_async: bool
    folder: Path

    def host(
        self,
        policy: dict[str, Any],
        *,
        blocks: int = 400,
        stock: bool = False,
        statistics: str | None = None,
        **engine: Any,
    ) -> SchedulerHost:
        """A scheduler under that policy; ``stock``: vLLM's own."""

    def refused(self, *, swapped: bool = False, config: object = None) -> str:
        """What the plug-in says when it is started with the other class, or that additional
        configuration."""


Case = Callable[[Bench], None]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def tier(name: str, priority: int, **more: Any) -> dict[str, Any]:
    evictable = {"preemption": {"evictable": True}} if name in ("t2", "t3") else {}
    return {"name": name, "priority": priority, **evictable, **more}


TIERS = [tier("t0", 300), tier("t1", 200), tier("t2", 100), tier("t3", 0)]


def policy(tiers: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "version": 1, "generation": 1, "pool": "test/pool", "model": {"name": "tiny"},
        "tiers": tiers or TIERS, **more,
    }  # fmt: skip


def budget(percent: int) -> dict[str, Any]:
    return policy(prefill={"budget_percent": percent})


def pools(t0: int, t2: int, **of_t2: Any) -> dict[str, Any]:
    return policy(
        [tier("t0", 300), tier("t2", 100)],
        kv_pools=[
            {"name": "protected", "tiers": ["t0"], "percent": t0},
            {"name": "batch", "tiers": ["t2"], "percent": t2, **of_t2},
        ],
    )


def bookkeeping_is_true(host: SchedulerHost) -> None:
    """Against vLLM's own lists, counted one by one."""
    scheduler = host.scheduler
    tidegate = scheduler.tidegate
    lanes = [one.id for lane in tidegate.roster.lanes for one in lane]
    assert sorted(lanes) == sorted(request.request_id for request in scheduler.waiting)
    pool = scheduler.kv_cache_manager.block_pool
    owners = tidegate.view.owners
    cached = {block.block_id for block in pool.blocks if not block.ref_cnt and block.block_hash}
    assert {i for i, owner in enumerate(owners._owner) if owner} == cached
    assert sum(owners.cached.values()) == len(cached)
    state = tidegate.view.state(tidegate.terms, host.now)
    tables = scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks
    once: set[int] = set()
    for one in state.running:
        assert one.blocks == len(tables[one.id])
        assert one.shared_blocks == sum(block.ref_cnt > 1 for block in tables[one.id])
        once.update(block.block_id for block in tables[one.id])
    held = state.held_blocks_by_pool or [sum(one.blocks for one in state.running)]
    assert sum(held) == len(once)
    assert state.free_blocks == pool.get_num_free_blocks()


@contextlib.contextmanager
def listening(path: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        receiver.setblocking(False)
        yield receiver


def received(receiver: socket.socket) -> list[StepStatistics]:
    told = []
    with contextlib.suppress(BlockingIOError):
        while True:
            told.append(loads(StepStatistics, receiver.recv(1 << 20)))
    return told


def told_in_a_run(host: SchedulerHost, receiver: socket.socket) -> list[StepStatistics]:
    """A socket holds few datagrams, so they are read as they come."""
    told = []
    while any(not one.is_finished() for one in host.requests.values()):
        host.step()
        told += received(receiver)
    return told
