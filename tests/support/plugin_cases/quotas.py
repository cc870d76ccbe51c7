"""KV pools: what is lent and comes back, whose history stays cached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.plugin_bench import (
    Bench,
    case,
    pools,
)

if TYPE_CHECKING:
    pass


@case
def a_flood_borrows_what_is_unused_and_gives_it_back(bench: Bench) -> None:
    """T0 owns 60 of 100 blocks, T2 owns 40 and may borrow 30."""
    host = bench.host(pools(60, 40, borrow_limit_percent=30), blocks=100)
    number = 0

    def flood() -> None:
        nonlocal number
        alive = sum(
            not one.is_finished() and name.startswith("t2") for name, one in host.requests.items()
        )
        for _ in range(alive, 30):
            number += 1
            host.add(f"t2-{number}", 100, 60, "t2")

    def steps(count: int) -> list[int]:
        held = []
        for _ in range(count):
            flood()
            host.step()
            held.append(host.blocks_of("t2"))
        return held

    lent = steps(60)
    assert max(lent) <= 70
    assert max(lent) > 60  # that is: lent
    for i in range(40):
        host.add(f"t0-{i}", 100, 60, "t0")
    asked = steps(3)
    assert max(asked) <= 70
    wanted = steps(40)
    assert max(wanted) <= 42  # T0 always asks: nominal, and what growth was not foreseen
    assert host.blocks_of("t0") >= 50
    for name in [name for name in host.requests if name.startswith("t0")]:
        host.abort(name)
    host.now += 700  # what T0 leaves cached is its own for ten minutes
    assert 60 < max(steps(60)) <= 70
    assert not any(name.startswith("t0") for step in host.steps for name in step.preempted)


def _turn_after_churn(bench: Bench, *, stock: bool) -> float:
    """Part of T0's history that its next turn finds after a batch tier has churned twice the
    cache."""
    host = bench.host(pools(50, 50), blocks=100, stock=stock)
    history = [i % 400 + 50 for i in range(1024)]
    host.add("t0-first", history, 2, "t0")
    host.run()
    for i in range(25):
        host.add(f"t2-{i}", 32 * 8, 2, "t2")
        host.run()
    host.add("t0-second", [*history, 7, 8, 9], 2, "t0")
    step = host.step()
    (new,) = step.output.scheduled_new_reqs
    host.run()
    return float(new.num_computed_tokens / len(history))


@case
def the_history_of_t0_outlives_the_churn_of_another_pool(bench: Bench) -> None:
    assert _turn_after_churn(bench, stock=True) <= 0.1
    assert _turn_after_churn(bench, stock=False) >= 0.9
