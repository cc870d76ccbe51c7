"""The prefill budget, pauses for protected prompts, objectives for the time between tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from support.plugin_bench import (
    BATCHED_TOKENS,
    Bench,
    budget,
    case,
    policy,
    tier,
)

if TYPE_CHECKING:
    pass


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
