"""Who makes room for whom: seats, blocks, back-off."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from support.plugin_bench import (
    CASES,
    Bench,
    bookkeeping_is_true,
    case,
    policy,
    tier,
)

if TYPE_CHECKING:
    from support.scheduler_host import SchedulerHost


def _gets_its_seats(bench: Bench, victims: int) -> None:
    host = bench.host(policy(), max_num_seqs=16)
    for i in range(18):
        host.add(f"t3-{i}", 20, 400, "t3")
    for _ in range(4):
        host.step()
    assert len(host.running) == 16
    for i in range(victims):
        host.add(f"t0-{i}", 20, 8, "t0")
    _t0_runs_over_t3(bench, host, victims)
    assert sum(len(step.preempted) for step in host.steps) == victims


def _gets_its_blocks(bench: Bench, victims: int) -> None:
    """Each holds 4 blocks, 2 or 3 of 80 are free; the prompt needs those of so many."""
    host = bench.host(policy(), blocks=80)
    for i in range(19):
        host.add(f"t3-{i}", 100, 28, "t3")
    for _ in range(4):
        host.step()
    assert host.free_blocks < 8
    running = sum(name.startswith("t3") for name in host.running)
    assert running >= 17
    free = host.free_blocks
    host.add("t0-0", (free + 4 * victims - 2) * 32, 8, "t0")
    _t0_runs_over_t3(bench, host, 1)
    assert sum(len(step.preempted) for step in host.steps) == victims


def _t0_runs_over_t3(bench: Bench, host: SchedulerHost, requests: int) -> None:
    for _ in range(3 if bench.is_async else 2):
        host.step()
    assert sum(name.startswith("t0") for name in host.running) == requests
    assert all(name.startswith("t3") for step in host.steps for name in step.preempted)


for _count in (1, 4, 16):
    for _way, _check in (("seats", _gets_its_seats), ("blocks", _gets_its_blocks)):
        CASES[f"t0_gets_the_{_way}_of_{_count}_victims"] = (
            lambda bench, check=_check, count=_count: check(bench, count)
        )


@case
def stock_lets_it_wait(bench: Bench) -> None:
    """The control of the cases before: without the plug-in a T0 waits for a seat."""
    host = bench.host(policy(), stock=True, max_num_seqs=16)
    for i in range(18):
        host.add(f"t3-{i}", 20, 400, "t3")
    for _ in range(4):
        host.step()
    host.add("t0-0", 20, 8, "t0")
    for _ in range(50):
        host.step()
    assert "t0-0" not in host.first_token


@case
def t0_is_never_a_victim_in_1000_random_steps(bench: Bench) -> None:
    """T0 alone always fits; everything together does not. Requests leave at any time."""
    rng = random.Random(20260101)
    host = bench.host(policy(), blocks=60, max_num_seqs=12)
    shared = {name: [rng.randrange(4, 500) for _ in range(96)] for name in ("t0", "t2", "t3")}
    for number in range(1000):
        if rng.random() < 0.55:
            name = rng.choice(("t0", "t0", "t2", "t3"))
            alive = sum(not one.is_finished() and n[:2] == "t0" for n, one in host.requests.items())
            if name != "t0" or alive < 4:
                prompt = shared[name][: rng.choice((0, 32, 96))]
                prompt = prompt + [rng.randrange(4, 500) for _ in range(rng.randrange(1, 200))]
                most = 16 if name == "t0" else 60  # it comes and goes, so that it needs victims
                host.add(f"{name}-{number}", prompt, rng.randrange(1, most), name)
        if rng.random() < 0.03:
            alive_names = [n for n, one in host.requests.items() if not one.is_finished()]
            if alive_names:
                host.abort(rng.choice(alive_names))
        host.step()
        if number % 10 == 0:
            bookkeeping_is_true(host)
    preempted = [name for step in host.steps for name in step.preempted]
    assert len(preempted) > 50
    assert {name[:2] for name in preempted} <= {"t2", "t3"}
    host.run()
    tidegate = host.scheduler.tidegate
    assert not tidegate.counters.failures
    assert not tidegate.roster.entries
    assert tidegate.roster.waiting == 0


@case
def a_victim_stays_out_for_its_back_off(bench: Bench) -> None:
    """Half a second is 25 steps here; the seat that it gave up is free long before."""
    wait = {"evictable": True, "backoff_per_queued_request_seconds": 1.0}
    host = bench.host(policy([tier("t0", 300), tier("t3", 0, preemption=wait)]), max_num_seqs=2)
    for i in range(2):
        host.add(f"t3-{i}", 20, 100, "t3")
    for _ in range(3):
        host.step()
    host.add("t0", 20, 2, "t0")
    host.step()
    (victim,) = host.steps[-1].preempted
    preempted = host.calls
    while victim not in host.running:
        host.step()
    assert 24 <= host.calls - preempted <= 28
    assert host.requests["t0"].is_finished()


@case
def in_a_stock_step_the_victim_is_still_of_the_lowest_tier(bench: Bench) -> None:
    """Stock evicts whom it let in last: here that is a T0, were the list not kept in order."""
    host = bench.host(policy(), blocks=40)
    for i in range(4):
        host.add(f"t3-{i}", 100, 300, "t3", expected_tokens=20)
    for _ in range(3):
        host.step()
    host.add("t0", 100, 300, "t0", expected_tokens=20)
    for _ in range(3):
        host.step()
    assert len(host.running) == 5

    def fails(state: object) -> None:
        raise ValueError("no plan, on purpose")

    host.scheduler.tidegate._planner.plan = fails
    while not host.steps[-1].preempted:
        host.step()
    assert host.steps[-1].preempted[0].startswith("t3")
    assert host.scheduler.tidegate.plan is None
