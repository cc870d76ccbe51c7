"""The planner is told in a simulation what the plug-in tells it inside vLLM."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.scheduling.contracts import SloMetric, SloObjective
from tidegate.scheduling.plan_request import StepPlan, StepState
from tidegate.scheduling.step_plan import StepPlanner
from tidegate.simulator.engine_model import CALIBRATIONS, Engine, EngineConfig, EngineRequest
from tidegate.simulator.simulation.node_policy import node_policy, one_engine
from tidegate.simulator.simulation.plugin import PluginHook, PluginOptions
from tidegate.simulator.simulation.request import SimRequest
from tidegate.simulator.simulation.system import Scheduling, simulate
from tidegate.workload.clients.mixed_node import MixedLoad, mixed_node
from tidegate.workload.requests import PlannedRequest, SharedPrefix

WORK = mixed_node(MixedLoad(0.38, 0.88, 4, 20), 1)


class Told:
    """An engine of 20 blocks with our plug-in, and what its planner was told."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        options: PluginOptions | None = None,
        promises: tuple[SloObjective, ...] = (),
    ):
        config = EngineConfig(
            CALIBRATIONS["test"].step_time, 21, 16, max_num_seqs=4, max_num_batched_tokens=512
        )
        policy = replace(node_policy(WORK), kv_pools=())
        first = replace(policy.tiers[0], slo_objectives=promises)
        policy = replace(policy, tiers=(first, *policy.tiers[1:]))
        self.hook = PluginHook(policy, config, options)
        self.engine = Engine(config, self.hook)
        self.states: list[StepState] = []
        planned = StepPlanner.plan

        def plan(planner: StepPlanner, state: StepState) -> StepPlan:
            self.states.append(state)
            return planned(planner, state)

        monkeypatch.setattr(StepPlanner, "plan", plan)

    def send(self, tier: str, number: int, prompt: int, shared: int = 0) -> EngineRequest:
        client = next(one for one in WORK.clients if one.tier == tier)
        prefix = SharedPrefix(tuple(range(shared)), 16) if shared else None
        planned = PlannedRequest(f"node/{tier}-00", number, 0.0, prompt, 40, prefix)
        request = SimRequest(f"{tier}/{number}", client, planned, tier, 0.0, 40)
        sequence = request.to_engine(16, 0, 0.0, None)
        self.engine.add(sequence)
        self.hook.arrived(request, sequence, number, 40)
        return sequence

    def step(self, times: int = 1) -> StepState:
        for _ in range(times):
            self.engine.step(0.0)
        return self.states[-1]


def test_how_often_a_request_was_preempted(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    low = told.send("t3", 0, 200)
    told.step(2)
    told.send("t0", 1, 200)
    told.step(2)
    assert low.preemptions == 1
    (waits,) = [one for those in told.states[-1].waiting for one in those]
    assert (waits.id, waits.preemptions, waits.blocks) == ("t3/0", 1, 0)


def test_blocks_that_two_hold_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    first = told.send("t3", 0, 100, shared=5)
    assert told.step(2).held_blocks_by_pool is None
    second = told.send("t3", 1, 100, shared=5)
    state = told.step(2)
    assert [one.shared_blocks for one in state.running] == [5, 5]
    held = {block for one in (first, second) for block in one.blocks}
    assert state.held_blocks_by_pool == [len(held)]
    while first in told.engine.running:
        told.step()
    assert [one.shared_blocks for one in told.step().running] in ([0], [])


def test_a_step_time_model_only_where_an_option_or_a_promise_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    between_tokens = SloObjective(SloMetric.INTER_TOKEN_LATENCY, 0.1)
    for options, promises, knows in (
        (None, (), False),
        (None, (between_tokens,), True),
        (PluginOptions(step_seconds_cap=0.1), (), True),
        (PluginOptions(knows_step_time=True), (), True),
    ):
        with monkeypatch.context() as patch:
            told = Told(patch, options, promises)
            told.send("t3", 0, 100)
            assert (told.step().step_time is not None) is knows


def test_it_follows_the_engine_through_a_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters are the engine's own, at every step, of all that run."""
    follow = PluginHook._follow
    seen = 0

    def checked(hook: PluginHook, engine: Engine, now: float) -> bool:
        nonlocal seen
        admitted = follow(hook, engine, now)
        for one in hook._running.values():
            sequence = hook._sequences[one.id][1]
            assert one.preemptions == sequence.preemptions
            assert one.shared_blocks == sum(block.holders > 1 for block in sequence.blocks)
            seen += 1
        return admitted

    monkeypatch.setattr(PluginHook, "_follow", checked)
    system = one_engine(Scheduling.TIDEGATE, node_policy(WORK))
    simulate(system, WORK, seed=1, duration_seconds=10.0)
    assert seen > 1_000
