"""States of an engine's step for the scheduler benchmark: 256 running, 200 waiting, KV nearly full.

Drawn from a fixed seed: four tiers in three KV pools, the lower two evictable, a tenth of the
running requests still in their prompt, prompts and outputs of all sizes, few blocks free, so that
growth, quotas, prefill budget and the choice of victims all have work.
"""

from __future__ import annotations

import random

from tidegate.scheduling import contracts
from tidegate.scheduling.plan_request import PlanRequest, StepState
from tidegate.scheduling.step_policy import EngineSize, StepPolicy, compile_step_policy

RUNNING = 256
WAITING = 200
BLOCK_TOKENS = 16
TOTAL_BLOCKS = 30_000
TIERS = ("t0", "t1", "t2", "t3")
_RUNNING_OF_TIER = (40, 60, 56, 100)


def step_policy() -> StepPolicy:
    """Of an engine with 256 seats and 8,192 tokens a step."""
    evictable = contracts.Preemption(evictable=True)
    tiers = tuple(
        contracts.TierPolicy(
            name=name,
            priority=-i,
            reserved_percent=(50, 20, 10, 10)[i],
            preemption=evictable if i > 1 else contracts.Preemption(),
        )
        for i, name in enumerate(TIERS)
    )
    pools = (
        contracts.KvPool(name="protected", tiers=("t0", "t1"), percent=60),
        contracts.KvPool(name="batch", tiers=("t2",), percent=20),
        contracts.KvPool(name="free", tiers=("t3",), percent=20),
    )
    policy = contracts.Policy(
        version=contracts.POLICY_VERSION,
        generation=1,
        pool="bench/pool",
        model=contracts.ModelPolicy(name="model"),
        tiers=tiers,
        kv_pools=pools,
    )
    return compile_step_policy(policy, EngineSize(TOTAL_BLOCKS, BLOCK_TOKENS, RUNNING, 8_192))


def step_state(seed: int) -> StepState:
    """One state; the same for the same seed."""
    draw = random.Random(seed)
    number = 0

    def request(tier: int) -> PlanRequest:
        nonlocal number
        number += 1
        return PlanRequest(
            id=str(number),
            tier=tier,
            tenant=f"{TIERS[tier]}-{draw.randrange(12)}",
            sequence=number,
            prompt_tokens=int(draw.lognormvariate(6.5, 0.9)) + 1,
            max_output_tokens=draw.randint(16, 1_024),
        )

    running = [request(tier) for tier, count in enumerate(_RUNNING_OF_TIER) for _ in range(count)]
    for one in running:
        if draw.random() < 0.1:
            one.computed_tokens = draw.randrange(one.prompt_tokens)
        else:
            one.total_tokens = one.prompt_tokens + draw.randrange(1, one.max_output_tokens)
            one.computed_tokens = one.total_tokens - 1
        one.blocks = -(-max(one.computed_tokens, 1) // BLOCK_TOKENS)
    draw.shuffle(running)
    waiting = [[request(tier) for _ in range(WAITING // len(TIERS))] for tier in range(len(TIERS))]
    free = max(TOTAL_BLOCKS - sum(one.blocks for one in running), 0) // draw.choice((1, 8, 400))
    return StepState(
        now=1_000.0,
        running=running,
        waiting=waiting,
        free_blocks=free,
        cached_blocks_by_pool=(free // 2, free // 8, free // 8),
    )
