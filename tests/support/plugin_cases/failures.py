"""Policies that change or break, hooks that fail, starts that are refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from support.plugin_bench import (
    Bench,
    case,
    policy,
    tier,
)

if TYPE_CHECKING:
    pass


@case
def the_policy_is_read_hot(bench: Bench) -> None:
    host = bench.host(policy(generation=1), max_num_seqs=1)
    tidegate = host.scheduler.tidegate
    host.add("running", 20, 400, "t0")
    for _ in range(60):
        host.step()
    assert tidegate._policy.generation == 1

    def after(text: dict[str, Any] | str) -> None:
        host.write_policy(text)
        for _ in range(60):  # 1.2 s
            host.step()

    after("{ broken")
    assert (tidegate._policy.generation, tidegate._policy.errors) == (1, 1)
    assert tidegate.plan is not None
    after(policy(generation=2, scheduling_mode="FirstComeFirstServed"))
    assert tidegate._policy.generation == 2
    assert tidegate.plan is None
    host.add("t3", 20, 2, "t3")
    host.add("t0", 20, 2, "t0")
    after(policy([tier("t3", 300), tier("t0", 0)], generation=3))
    assert tidegate.plan is not None
    host.policy_path.unlink()
    host.run()
    assert tidegate._policy.generation == 3
    assert host.first_token["t3"] < host.first_token["t0"]
    assert not tidegate.counters.failures


@case
def without_a_policy_file_it_is_stock_until_there_is_one(bench: Bench) -> None:
    host = bench.host(policy())
    host.policy_path.unlink()
    host.add("r", 20, 300, "t0")
    for _ in range(10):
        host.step()
    assert host.scheduler.tidegate.counters.planned_steps == 0
    host.write_policy(policy())
    host.run()
    assert host.scheduler.tidegate.counters.planned_steps > 100


HOOKS = {
    "begin": lambda tidegate: (tidegate._planner, "plan"),
    "begin after preempting": lambda tidegate: (tidegate, "_order_running"),
    "most_tokens": lambda tidegate: (tidegate, "most_tokens"),
    "may_enter": lambda tidegate: (tidegate, "may_enter"),
    "giving_up": lambda tidegate: (tidegate, "giving_up"),
    "preempted": lambda tidegate: (tidegate, "preempted"),
    "end": lambda tidegate: (tidegate, "end"),
    "arrived": lambda tidegate: (tidegate.roster, "arrived"),
    "waits": lambda tidegate: (tidegate.roster, "waits"),
    "waits_no_more": lambda tidegate: (tidegate.roster, "waits_no_more"),
    "ended": lambda tidegate: (tidegate.roster, "ended"),
}


@case
def a_failure_in_a_hook_costs_one_step_of_planning(bench: Bench) -> None:
    """Each hook fails at every third call: all requests end whole, and steps are planned again."""
    for hook, where in HOOKS.items():
        host = bench.host(policy(), blocks=24, max_num_seqs=8)
        host.add("first", 20, 4, "t0")
        host.step()
        tidegate = host.scheduler.tidegate
        owner, name = where(tidegate)
        failing = _every_third(getattr(owner, name), name)
        setattr(owner, name, failing)
        rng = random.Random(7)
        for i in range(24):
            kind = rng.choice(("t0", "t2", "t3"))
            host.add(f"{kind}-{i}", rng.randrange(10, 300), rng.randrange(2, 40), kind)
            host.step()
        host.run()
        assert sum(tidegate.counters.failures.values()) > 0, hook
        assert tidegate.counters.planned_steps > 10, hook
        assert all(one.num_output_tokens == one.max_tokens for one in host.requests.values()), hook


def _every_third(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    calls = 0

    def failing(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise ValueError(f"{name} fails, on purpose")
        return function(*arguments, **named)

    failing.__name__ = name
    return failing


@case
def plans_that_do_nothing_do_not_stop_the_engine(bench: Bench) -> None:
    from tidegate.scheduling.step_plan import StepPlan

    host = bench.host(policy())
    host.add("t0", 20, 4, "t0")
    host.step()
    host.scheduler.tidegate._planner.plan = lambda state: StepPlan()
    host.add("t3", 20, 4, "t3")
    host.run()
    assert host.scheduler.tidegate.counters.stalls


@case
def it_refuses_a_start_that_can_not_work(bench: Bench) -> None:
    assert "async scheduling" in bench.refused(swapped=True)
    for config in ({}, {"tidegate": {}}, {"tidegate": {"policy": 7}}):
        assert "--additional-config" in bench.refused(config=config)
