"""The simulator's engine model beside vLLM's scheduler, both steered."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import TYPE_CHECKING

from support.plugin_bench import (
    BATCHED_TOKENS,
    Bench,
    case,
    pools,
)

if TYPE_CHECKING:
    pass


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
