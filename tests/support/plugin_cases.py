"""What the plug-in must do to vLLM's scheduler, case by case, on both of its classes.

The cases run in vLLM's environment (``plugin_runner.py``) and are listed in ours, so this imports
no vLLM. Each gets a :class:`Bench`, makes hosts with it and asserts.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
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


def _keeps_the_budget(bench: Bench, percent: int) -> None:
    host = bench.host(budget(percent))
    for i in range(8):
        host.add(f"t1-{i}", 20, 120, "t1")
    for _ in range(3):
        host.step()
    host.add("t2-long", 3000, 8, "t2")
    for i in range(6):
        host.add(f"t{i % 2 * 3}-more-{i}", 200, 8, f"t{i % 2 * 3}")
    begin = len(host.steps)
    host.run()
    most = BATCHED_TOKENS * percent // 100
    mixed = [step for step in host.steps[begin:] if step.decodes and step.prefill]
    assert len(mixed) > 3
    assert max(sum(step.prefill.values()) for step in mixed) <= most
    assert any(sum(step.prefill.values()) >= most * 0.9 for step in mixed)


@case
def the_budget_holds_at_5_percent(bench: Bench) -> None:
    _keeps_the_budget(bench, 5)


@case
def the_budget_holds_at_30_percent(bench: Bench) -> None:
    _keeps_the_budget(bench, 30)


@case
def the_budget_holds_at_60_percent(bench: Bench) -> None:
    _keeps_the_budget(bench, 60)


@case
def a_short_t0_prompt_passes_a_long_one_in_mid_prefill(bench: Bench) -> None:
    """The plain budget hook took 14 steps here, stock 2: vLLM walks running before waiting."""
    for percent in (5, 30, 60):
        host = bench.host(budget(percent))
        host.add("t1", 20, 100, "t1")
        for i in range(4):
            host.add(f"t3-{i}", 20, 100, "t3")
        while len(host.first_token) < 5:
            host.step()
        host.add("t2-long", 2000, 4, "t2")
        host.step()
        assert host.steps[-1].prefill == {"t2-long": BATCHED_TOKENS * percent // 100}
        arrived = host.calls
        host.add("t0", 60, 4, "t0")
        host.run()
        assert host.first_token["t0"] - arrived <= 2, percent
        assert host.first_token["t2-long"] > host.first_token["t0"] or percent == 60


@case
def evictable_decodes_pause_for_a_protected_prompt_and_keep_their_blocks(bench: Bench) -> None:
    host = bench.host(policy())
    host.add("t1", 20, 100, "t1")
    host.add("t3", 100, 100, "t3")
    for _ in range(4):
        host.step()
    held = host.blocks_of("t3")
    host.add("t0", 60, 4, "t0")
    step = host.step()
    assert step.prefill == {"t0": 60}
    assert step.decodes == {"t1"}
    assert host.blocks_of("t3") == held
    assert "t3" in host.step().decodes
    host.run()
    assert not any(step.preempted for step in host.steps)


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
        if rng.random() < 0.35:
            name = rng.choice(("t0", "t2", "t3", "t3"))
            alive = sum(not one.is_finished() and n[:2] == "t0" for n, one in host.requests.items())
            if name != "t0" or alive < 4:
                prompt = shared[name][: rng.choice((0, 32, 96))]
                prompt = prompt + [rng.randrange(4, 500) for _ in range(rng.randrange(1, 200))]
                host.add(f"{name}-{number}", prompt, rng.randrange(1, 60), name)
        if rng.random() < 0.03:
            alive_names = [n for n, one in host.requests.items() if not one.is_finished()]
            if alive_names:
                host.abort(rng.choice(alive_names))
        host.step()
        if number % 10 == 0:
            _bookkeeping_is_true(host)
    preempted = [name for step in host.steps for name in step.preempted]
    assert len(preempted) > 50
    assert {name[:2] for name in preempted} <= {"t2", "t3"}
    host.run()
    tidegate = host.scheduler.tidegate
    assert not tidegate.counters.failures
    assert not tidegate.roster.entries
    assert tidegate.roster.waiting == 0


def _bookkeeping_is_true(host: SchedulerHost) -> None:
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


@case
def without_tags_it_is_stock(bench: Bench) -> None:
    """Step by step the same, under preemption."""
    told = []
    for stock in (True, False):
        host = bench.host(policy(), blocks=40, stock=stock)
        for i in range(20):
            host.add(f"r{i}", 50 + i * 7, 40)
        host.run()
        told.append([(step.prefill, step.decodes, step.preempted) for step in host.steps])
    assert told[0] == told[1]
    assert any(preempted for _, _, preempted in told[0])


@case
def what_the_policy_does_not_know_is_left_alone(bench: Bench) -> None:
    """No tags, unreadable ones, an unknown tier, a pooling request; those with a tier go first."""
    host = bench.host(policy(), max_num_seqs=3)
    host.add("none", 40, 30)
    host.add("unknown", 40, 30, "t9")
    host.add("unreadable", 40, 30, "t0", weight="heavy")
    host.add("t3", 40, 30, "t3")
    step = host.step()
    assert step.prefill == {"t3": 40, "none": 40, "unknown": 40}
    assert host.running == ["t3", "none", "unknown"]
    host.run()
    tidegate = host.scheduler.tidegate
    assert not tidegate.counters.failures
    assert tidegate.roster.waiting == 0


@case
def pooling_requests_are_left_alone(bench: Bench) -> None:
    from vllm.pooling_params import PoolingParams
    from vllm.v1.request import Request

    host = bench.host(policy())
    host.add("t0", 40, 30, "t0")
    request = Request("pooled", list(range(5, 45)), None, PoolingParams(), block_hasher=host.hasher)
    host.requests["pooled"] = request
    host.scheduler.add_request(request)
    output = host.scheduler.schedule()
    assert output.num_scheduled_tokens == {"t0": 40, "pooled": 40}
    assert not host.scheduler.tidegate.counters.failures


@case
def a_grammar_that_is_being_compiled_holds_up_nobody(bench: Bench) -> None:
    from types import SimpleNamespace

    from vllm.v1.request import RequestStatus

    host = bench.host(policy())
    late = host.add("late", 20, 4, "t0", enqueue=False)
    late.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    late.structured_output_request = SimpleNamespace(grammar=None)
    host.scheduler.add_request(late)
    host.add("t3", 20, 40, "t3")
    for _ in range(3):
        host.step()
    assert host.running == ["t3"]
    late.structured_output_request.grammar = object()
    host.step()  # vLLM finds it compiled
    late.structured_output_request = None  # its tokens are not checked here
    step = host.step()
    assert step.prefill == {"late": 20}
    host.run()
    assert not host.scheduler.tidegate.counters.failures


@case
def the_queueing_policy_of_the_engine_does_not_matter(bench: Bench) -> None:
    told = []
    for name in ("fcfs", "priority"):
        host = bench.host(policy(), blocks=30, max_num_seqs=8, scheduling_policy=name)
        for i in range(24):
            tier = ("t3", "t2", "t0")[i % 3]
            host.add(f"{tier}-{i}", 40 + i * 5, 30, tier)
            host.step()
        host.run()
        told.append([(step.prefill, step.decodes, step.preempted) for step in host.steps])
    assert told[0] == told[1]
    preempted = {name[:2] for _, _, names in told[0] for name in names}
    assert preempted
    assert "t0" not in preempted


@case
def the_prefix_cache_may_be_reset_while_requests_run(bench: Bench) -> None:
    host = bench.host(policy(), blocks=100)
    for i in range(10):
        host.add(f"t{i % 2 * 3}-{i}", 100, 20, f"t{i % 2 * 3}")
    for _ in range(5):
        host.step()
    assert host.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert host.scheduler.tidegate.view.owners.cached.total() == 0
    host.run()
    _bookkeeping_is_true(host)
    assert all(one.num_output_tokens == 20 for one in host.requests.values())
    assert not host.scheduler.tidegate.counters.failures


@case
def a_prompt_list_shares_one_number_and_keeps_its_order(bench: Bench) -> None:
    host = bench.host(policy(), max_num_seqs=1)
    host.add("later", 20, 2, "t0", sequence=8)
    for i in range(3):
        host.add(f"n-{i}", 20, 2, "t0", sequence=7)
    host.run()
    order = sorted(host.first_token, key=lambda name: host.first_token[name])
    assert order == ["n-0", "n-1", "n-2", "later"]


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
def every_step_is_told_and_nobody_need_listen(bench: Bench) -> None:
    path = str(bench.folder / "steps")
    host = bench.host(pools(50, 50), blocks=60, max_num_seqs=8, statistics=path)
    history = list(range(10, 10 + 96))
    host.add("t2-first", history, 2, "t2")
    host.run()
    silent = _steps_that_computed(host)
    host.scheduler.tidegate._notes._pools_due = 0.0  # told at the next step
    told: list[StepStatistics] = []
    with _listening(path) as receiver:
        for i in range(12):
            host.add(f"t2-{i}", [*history, *range(200, 220 + i)], 30, "t2", sequence=100 + i)
        for i in range(14):
            if i == 8:
                host.add("t0", 800, 2, "t0", sequence=900)
            host.step()
            told += _received(receiver)
    seen = host.steps[-14:][: len(told)]
    assert len(told) == 14 - (host.depth - 1)
    assert [one.step for one in told] == list(range(silent + 1, silent + 1 + len(told)))
    assert told[0].dropped_total == silent
    for one, step in zip(told, seen, strict=True):
        prefills = sum(prefill.tokens for prefill in one.prefills)
        assert len(one.decodes) + prefills == step.output.total_num_scheduled_tokens
        assert len(one.preemptions) == len(step.preempted)
        assert one.seconds > 0
        assert not one.decode_tokens
    first = {prefill.sequence: prefill for prefill in told[0].prefills}
    assert (first[100].reused_tokens, first[100].context_tokens) == (96, 96)
    assert set(told[2].decodes) >= {100, 101}
    victims = [victim for one in told for victim in one.preemptions]
    assert victims
    assert {(victim.for_sequence, victim.cause.value) for victim in victims} == {(900, "admission")}
    assert all(victim.lost_tokens > 96 for victim in victims)
    assert [pool.nominal_blocks for pool in told[0].pools] == [30, 30]
    assert [tier.name for tier in told[0].tiers] == ["t0", "t2"]
    assert told[0].tiers[0].room_blocks >= 30
    host.run()  # nobody reads any more
    reporter = host.scheduler.tidegate._reporter
    assert reporter.sent == len(told)
    assert reporter.sent + reporter.dropped == _steps_that_computed(host)
    host.scheduler.shutdown()
    assert not host.scheduler.tidegate.counters.failures


def _steps_that_computed(host: SchedulerHost) -> int:
    return sum(bool(step.prefill or step.decodes or step.preempted) for step in host.steps)


@contextlib.contextmanager
def _listening(path: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        receiver.setblocking(False)
        yield receiver


def _received(receiver: socket.socket) -> list[StepStatistics]:
    told = []
    with contextlib.suppress(BlockingIOError):
        while True:
            told.append(loads(StepStatistics, receiver.recv(1 << 20)))
    return told


def _told_in_a_run(host: SchedulerHost, receiver: socket.socket) -> list[StepStatistics]:
    """A socket holds few datagrams, so they are read as they come."""
    told = []
    while any(not one.is_finished() for one in host.requests.values()):
        host.step()
        told += _received(receiver)
    return told


@case
def what_a_victim_computes_again_is_told_with_its_cause(bench: Bench) -> None:
    path = str(bench.folder / "steps")
    host = bench.host(policy(), max_num_seqs=1, blocks=40, statistics=path)
    with _listening(path) as receiver:
        host.add("t3", 100, 20, "t3", sequence=1)
        for _ in range(5):
            host.step()
        host.add("t0", 1000, 2, "t0", sequence=2)  # takes the seat, and the victim's cache
        told = _received(receiver) + _told_in_a_run(host, receiver)
    (victim,) = [victim for one in told for victim in one.preemptions]
    again = [one for step in told for one in step.prefills if one.recomputed_tokens]
    assert (victim.sequence, victim.for_sequence) == (1, 2)
    assert {(one.sequence, one.caused_by) for one in again} == {(1, "t0")}
    reused = sum(one.reused_tokens for step in told for one in step.prefills if one.sequence == 1)
    assert sum(one.recomputed_tokens for one in again) == victim.lost_tokens - reused


NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}


@case
def no_draft_is_scheduled_for_a_tier_without(bench: Bench) -> None:
    """And at most one for a tier that may have one; acceptance is told by tier."""
    path = str(bench.folder / "steps")
    terms = policy(
        [tier("t0", 300), tier("t2", 100, draft_tokens=1), tier("t3", 0, draft_tokens=0)]
    )
    host = bench.host(terms, statistics=path, speculative_config=NGRAM)
    host.accepted_drafts = 2
    with _listening(path) as receiver:
        for i in range(9):
            name = ("t0", "t2", "t3")[i % 3]
            host.add(f"{name}-{i}", 40, 30, name)
        told = _told_in_a_run(host, receiver)
    lengths: dict[str, set[int]] = {"t0": set(), "t2": set(), "t3": set()}
    for step in host.steps:
        for name, drafts in step.output.scheduled_spec_decode_tokens.items():
            lengths[name[:2]].add(len(drafts))
    assert max(lengths["t0"]) == 3
    assert lengths["t2"] == {1}
    assert lengths["t3"] == set()
    drafted, accepted = _acceptance(told)
    scheduled = [
        (name[:2], len(drafts))
        for step in host.steps
        for name, drafts in step.output.scheduled_spec_decode_tokens.items()
    ]
    for name in ("t0", "t2"):
        most = sum(tokens for tier, tokens in scheduled if tier == name)
        most_accepted = sum(min(tokens, 2) for tier, tokens in scheduled if tier == name)
        if bench.is_async:  # of a request that ended in the step before nothing comes back
            assert 0 < drafted[name] <= most
            assert 0 < accepted[name] <= most_accepted
        else:
            assert (drafted[name], accepted[name]) == (most, most_accepted)
    assert "t3" not in drafted
    assert {len(one.decode_tokens) for one in told if one.drafts} != {0}
    assert not host.scheduler.tidegate.counters.failures


def _acceptance(told: list[StepStatistics]) -> tuple[Counter[str], Counter[str]]:
    drafted: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    for step in told:
        for one in step.drafts:
            drafted[one.tier] += one.drafted_tokens
            accepted[one.tier] += one.accepted_tokens
    return drafted, accepted


@case
def drafts_give_way_to_a_prompt(bench: Bench) -> None:
    """28 decodes with 3 drafts each take 112 of 128 tokens; the prompt may use 38."""
    tiers = [tier("t0", 300), tier("t1", 200)]
    host = bench.host(policy(tiers), max_num_batched_tokens=128, speculative_config=NGRAM)
    for i in range(28):
        host.add(f"t1-{i}", 20, 200, "t1")
    while len(host.first_token) < 28:
        host.step()
    for _ in range(3):
        host.step()
    assert host.steps[-1].output.total_num_scheduled_tokens == 112
    host.add("t0", 300, 2, "t0")
    step = host.step()
    assert step.prefill == {"t0": 38}
    assert step.output.total_num_scheduled_tokens == 128
    host.run()
    assert not host.scheduler.tidegate.counters.failures


BETWEEN_TOKENS = {"metric": "InterTokenLatency", "target_seconds": 0.03}


def _seconds(step: Any) -> float:
    """Of an engine far from the fit's prior: half a millisecond a decode, 0.1 ms a prompt token."""
    return 0.005 + 5e-4 * len(step.decodes) + 1e-4 * sum(step.prefill.values())


def _chunks_beside_decodes(bench: Bench, **of_t1: Any) -> list[Any]:
    """Steps with some of a long prompt's tokens while four decode, after an idle time."""
    host = bench.host(policy([tier("t1", 200, **of_t1), tier("t2", 100)]))
    host.step_seconds = _seconds
    host.add("t1", 60, 4, "t1")
    host.run()
    host.now += 100  # of nothing to do
    for i in range(4):
        host.add(f"t1-{i}", 60, 60, "t1")
    while len(host.first_token) < 5:
        host.step()
    host.add("t2-short", 300, 2, "t2")
    for _ in range(12):
        host.step()
    begin = len(host.steps)
    host.add("t2-long", 2500, 2, "t2")
    host.run()
    assert not host.scheduler.tidegate.counters.failures
    return [s for s in host.steps[begin:] if s.decodes and s.prefill.get("t2-long")]


@case
def an_objective_for_the_time_between_tokens_shortens_the_chunks(bench: Bench) -> None:
    """614 tokens are 30 percent of the step, and take 68 ms; 230 are what 30 ms leave room for."""
    tokens = [step.prefill["t2-long"] for step in _chunks_beside_decodes(bench)]
    assert tokens == [614, 614, 614, 614, 44]
    paced = _chunks_beside_decodes(bench, slo_objectives=[BETWEEN_TOKENS])[:-1]
    assert all(0.027 < _seconds(step) < 0.033 for step in paced), [*map(_seconds, paced)]
    assert len(paced) >= 9


@case
def step_times_that_fail_cost_one_step_of_planning_and_begin_anew(bench: Bench) -> None:
    host = bench.host(policy([tier("t1", 200, slo_objectives=[BETWEEN_TOKENS]), tier("t2", 100)]))
    host.step_seconds = _seconds
    tidegate = host.scheduler.tidegate

    def fails(*_: object) -> float:
        raise ValueError("no time, on purpose")

    host.add("t1", 60, 60, "t1")
    for place in ("seconds", "observe"):
        for _ in range(4):
            host.step()
        model = tidegate._times.model
        broken = SimpleNamespace(observed=1, seconds=model.seconds, observe=model.observe)
        setattr(broken, place, fails)
        tidegate._times._fit = broken
        host.add(f"t2-{place}", 300, 2, "t2")
    host.run()
    assert tidegate.counters.failures == {"begin": 1, "returned": 1}
    assert tidegate._times.model.observed > 20
    assert all(one.num_output_tokens == one.max_tokens for one in host.requests.values())


@case
def the_engine_model_schedules_alike_step_by_step(bench: Bench) -> None:
    """The simulator's plug-in, on its model of vLLM, under preemption: what its figures rest on."""
    from tidegate.scheduling.contracts import Policy, decode
    from tidegate.simulator.engine_model import Engine, EngineConfig, EngineRequest, StepTimeModel
    from tidegate.simulator.simulation.plugin import PluginHook

    if bench.is_async:
        return  # the model has one step in flight
    terms = pools(30, 20)
    host = bench.host(terms, blocks=60, max_num_seqs=6)
    config = EngineConfig(
        step_time=StepTimeModel(0.0, 0.0, 0.0, 0.02),
        num_gpu_blocks=61,
        block_size=32,
        max_num_seqs=6,
        max_num_batched_tokens=BATCHED_TOKENS,
    )
    hook = PluginHook(decode(Policy, terms), config)
    engine = Engine(config, hook)
    rng = random.Random(20260101)
    now = host.now
    for number in range(400):
        if number < 300 and rng.random() < 0.15:
            tier_name = rng.choice(("t0", "t2", "t2", "t2"))
            name, prompt, output = (
                f"{tier_name}-{number}",
                rng.randrange(20, 500),
                rng.randrange(5, 90),
            )
            sequence = len(host.requests)
            host.add(name, [rng.randrange(4, 500) for _ in range(prompt)], output, tier_name)
            seen = SimpleNamespace(
                id=name, tier=tier_name, tenant=tier_name, max_output_tokens=output,
                planned=SimpleNamespace(prompt_tokens=prompt),
            )  # fmt: skip
            request = EngineRequest(
                request_id=name, prompt_tokens=prompt, output_tokens_target=output, priority=0,
                arrived_at=float(number), content_key=number,
                prompt_block_hashes=[hash((number, i)) for i in range(prompt // 32)],
            )  # fmt: skip
            hook.arrived(seen, request, sequence, 0)
            engine.add(request)
        now += 0.02
        if not engine.has_work:
            host.now = now
            continue
        step, model = host.step(), engine.step(now)
        assert step.output.num_scheduled_tokens == {r.request_id: n for r, n in model.rows}, number
        assert set(step.preempted) == {r.request_id for r in model.preempted}, number
    preempted = sum(len(step.preempted) for step in host.steps)
    assert preempted > 5, preempted


@case
def it_refuses_a_start_that_can_not_work(bench: Bench) -> None:
    assert "async scheduling" in bench.refused(swapped=True)
    for config in ({}, {"tidegate": {}}, {"tidegate": {"policy": 7}}):
        assert "--additional-config" in bench.refused(config=config)
