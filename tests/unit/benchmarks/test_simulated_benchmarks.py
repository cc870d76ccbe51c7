"""How the simulated benchmarks turn runs into figures: worst seed, misses, windows, variations."""

from __future__ import annotations

import sys
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tidegate.scheduling.outcomes import Outcome
from tidegate.simulator.simulation.node_policy import node_policy, one_engine
from tidegate.simulator.simulation.result import RequestRecord
from tidegate.simulator.simulation.system import Scheduling, System, simulate
from tidegate.workload.clients import incidents as workloads
from tidegate.workload.clients.client import Workload
from tidegate.workload.clients.mixed_node import MixedLoad, mixed_node

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import incident_readings
import incidents
import node
import prefill
import sensitivity
import simulated
from report import Aim, figure

TINY = MixedLoad(0.4, 0.8, 2, 8)


def tiny(seed: int) -> Workload:
    return mixed_node(TINY, seed)


def fcfs(work: Workload) -> System:
    return one_engine(Scheduling.FCFS, node_policy(work))


def summary(**tiers: Any) -> simulated.RunSummary:
    return simulated.RunSummary("s", "w", 1, tiers, 1.0, 1.0, 1.0, 1.0, 0, 0, 1, 100.0, 1.0)


def tier(p99: float = 0.1, within: float = 1.0, share: float = 0.5) -> simulated.TierSummary:
    return simulated.TierSummary(1_400, 0.05, p99, within, 1.0, 0.02, 0.1, 1.0, share)


def record(arrival: float, ttft: float | None) -> RequestRecord:
    first = None if ttft is None else arrival + ttft
    return RequestRecord("r", "t", "t1", "g", arrival, 10, 0, 5, first_token=first)


def test_a_run_is_boiled_down() -> None:
    result = simulate(fcfs(tiny(1)), tiny(1), seed=1, duration_seconds=60, warmup_seconds=10)
    boiled = simulated.summarize(result, 0.5)
    assert set(boiled.tiers) == {"t0", "t1", "t2", "t3"}
    assert sum(one.computed_share for one in boiled.tiers.values()) == pytest.approx(1.0)
    assert boiled.tiers["t3"].requests == len(simulated.settled(result, result.measured("t3")))
    assert boiled.in_flight > 10
    assert boiled.hit_ratio > 0.1


def test_who_has_just_come_is_not_yet_a_miss_but_who_waits_is() -> None:
    result = simulate(fcfs(tiny(1)), tiny(1), seed=1, duration_seconds=20)
    waits, came = record(5.0, None), record(19.5, None)
    assert simulated.settled(result, [waits, came]) == [waits]


def test_what_the_slowest_are_made_of() -> None:
    ones = [
        replace(record(10.0, 0.1 + 0.01 * i), first_scheduled=10.0 + 0.004 * i) for i in range(100)
    ]
    (quick, slow) = simulated.slowest([*ones, record(11.0, None)])
    assert quick == pytest.approx((0.392, 1.08 - 0.392))
    assert slow == pytest.approx((0.396, 1.09 - 0.396))
    result = simulate(fcfs(tiny(1)), tiny(1), seed=1, duration_seconds=30)
    for one in result.records:
        if one.first_token is not None:
            assert one.first_scheduled is not None
            assert one.dispatched is not None
            assert one.dispatched <= one.first_scheduled < one.first_token


def test_a_constant_is_varied_in_every_engine() -> None:
    run = simulated.Run("k", tiny, fcfs, 1, 1.0, 0.0, constant="per_token_seconds", factor=0.8)
    varied, plain = run.built(tiny(1)), replace(run, constant=None).built(tiny(1))
    times = [one.groups[0].calibration.step_time.per_token_seconds for one in (varied, plain)]
    assert times[0] == pytest.approx(0.8 * times[1])


def test_a_drafts_passes_and_acceptance_are_varied_where_there_is_one() -> None:
    run = simulated.Run("k", tiny, node.by_draft, 1, 1.0, 0.0, factor=1.2)
    plain = run.built(tiny(1)).groups[0].speculation
    passes = replace(run, constant=simulated.DRAFT_PASS).built(tiny(1)).groups[0].speculation
    right = replace(run, constant=simulated.DRAFT_ACCEPTANCE).built(tiny(1)).groups[0].speculation
    assert plain is not None
    assert passes is not None
    assert right is not None
    assert passes.pass_time.seconds(1) == pytest.approx(1.2 * plain.pass_time.seconds(1))
    assert right.acceptance_percent["chat"] == pytest.approx(1.2 * plain.acceptance_percent["chat"])
    undrafted = replace(run, system=fcfs, constant=simulated.DRAFT_PASS)
    assert undrafted.built(tiny(1)).groups == fcfs(tiny(1)).groups


def test_each_figure_is_computed_from_the_runs_of_its_own_variation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def execute(runs: list[simulated.Run], *_: object) -> simulated.Results:
        return {
            (run.key, run.seed): replace(summary(), completed_per_second=run.factor) for run in runs
        }

    monkeypatch.setattr(sensitivity, "execute", execute)
    runs = [simulated.Run("k", tiny, fcfs, 1, 1.0, 0.0)]
    console = Console(width=400, record=True)
    figures = sensitivity.sensitivity(
        runs,
        lambda done: [figure("rate", done["k", 1].completed_per_second, "1/s", Aim(">=", 1.0))],
        1,
        console,
    )
    names = sensitivity.constants(with_drafts=False)
    assert "per_pair_seconds" in names
    assert "kv_capacity_tokens" in names
    values = {one.name: (one.value, one.met) for one in figures}
    assert values.pop("rate (shortened, constants as they are)") == (1.0, True)
    assert values == {
        f"rate ({name} x {factor:g})": (factor, factor > 1)
        for name in names
        for factor in (0.8, 1.2)
    }
    assert "0.8 | 1.2" in console.export_text()


def test_the_runs_that_are_varied_give_all_figures_of_ours() -> None:
    extra = {
        "t0 p99 in bursts": 1.0,
        "t0 hits": 1.0,
        "t1 worst minute before": 1.0,
        "t1 worst minute after": 1.0,
    }
    done = {
        (run.key, 1): replace(summary(t0=tier(), t1=tier()), extra=extra)
        for run in incidents._runs(None, [1], 100.0)
        if run.key[0] == "C" or incidents._is_judged(run.key)
    }
    figures = incidents._figures(done, [1])
    assert {one.name[0] for one in figures} == {"A", "B", "C", "D"}
    assert [one.name for one in figures if one.aim] == [
        "A: Tidegate, T1 P99",
        "B: T0 P99 in the avalanche",
        "B: recomputed tokens, down from vLLM priority",
        "B: T0's prefix hits",
        "D, T1 sends it: Tidegate, prompt limits, T1's worst minute",
        "D, T3 sends it: Tidegate, prompt limits, T1's worst minute",
    ]


def test_the_worst_seed_is_the_figure() -> None:
    done = {}
    for seed, p99 in ((1, 0.15), (2, 0.25)):
        done[node.ALONE, seed] = summary(t0=tier(0.1))
        done[node.OURS, seed] = summary(t0=tier(p99, within=0.999), t3=tier(share=0.2))
        done[node.FCFS, seed] = summary(t0=tier(2.0))
    figures = {one.name: one for one in node._figures(done, (1, 2), "")}
    assert figures["T0 P99"].value == pytest.approx(2.5)
    assert figures["T0 P99"].met is False
    assert figures["T0 within 800 ms"].met is True
    assert figures["requests/s"].value == 1.0
    assert figures["requests/s"].met is False


def test_the_worst_minute_slides_and_counts_those_without_a_token() -> None:
    quiet = [record(float(at), 0.1) for at in range(200)]
    assert incident_readings.worst_minute(quiet) == pytest.approx(0.1)
    slow = [record(100.0 + index, 3.0) for index in range(2)]
    assert incident_readings.worst_minute([*quiet, *slow]) == pytest.approx(3.0)
    assert incident_readings.worst_minute([*quiet, record(100.5, None)]) == inf


def test_a_turn_without_its_history_is_told_from_a_first_turn() -> None:
    result = simulate(fcfs(tiny(1)), tiny(1), seed=1, duration_seconds=1)
    turns = [
        replace(record(0.0, 0.1), tier=tier, prompt_tokens=prompt, cached_tokens=cached)
        for tier in ("t0", "t1")
        for prompt, cached in ((2_000, 0), (3_600, 1_984), (5_200, 0 if tier == "t0" else 3_584))
    ]
    lost = incident_readings.lost_histories(replace(result, records=turns))
    assert lost == {
        "t0 histories lost %": pytest.approx(100 / 3),
        "t1 histories lost %": 0.0,
    }


def test_prompt_limits_are_those_of_the_conversations_alone() -> None:
    policy = incidents.with_prompt_limits(node_policy(tiny(1)))
    assert [one.prompt_limit is not None for one in policy.tiers] == [True, True, False, False]


def test_the_knee_is_the_smallest_budget_that_loses_nothing() -> None:
    done = {name: summary(t0=tier()) for name in prefill.VICTIMS}
    for percent in prefill.BUDGETS:
        rate = 1.0 if percent >= 20 else 0.9
        done[f"budget {percent}"] = replace(summary(t0=tier()), completed_per_second=rate)
    figures = {one.name: one for one in prefill.figures_of(done)}
    assert figures["knee of the budget"].value == 20


def test_a_poisoned_run_says_what_became_of_the_poison_and_is_else_as_without() -> None:
    poisoned = incidents.poison("t1", 60.0, 1)
    clean = incidents.poison("t1", 60.0, 1).without(workloads.POISON)
    with_it, without = (
        simulate(incidents.SYSTEMS[incidents.LIMITED](work), work, seed=1, duration_seconds=60.0)
        for work in (poisoned, clean)
    )
    said = incident_readings.minutes(with_it)
    assert said["poison prompts"] == said["poison refused"] == 3
    assert said["poison served"] == 0
    served = [one for one in with_it.records if one.outcome is not Outcome.PROMPT_TOO_LONG]
    assert served == without.records
