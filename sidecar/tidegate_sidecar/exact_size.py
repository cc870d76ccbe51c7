"""When an estimate does not decide: the prompt is counted.

A decision is the prompt limit of the tier, what the context leaves for the output, or what the
tenant's rate limits have left. Where the prompt may lie on either side of one of them, by the
measured error of the estimate, its text is counted by the model's tokenizer; else never.
"""

from __future__ import annotations

import time
from dataclasses import replace

from tidegate.scheduling.contracts import TierPolicy
from tidegate.scheduling.limit_window import Clocks
from tidegate.scheduling.request import Request
from tidegate_sidecar.bodies import Body
from tidegate_sidecar.runtime import Runtime
from tidegate_sidecar.token_counter import TokenCounter


async def decided(
    runtime: Runtime, counter: TokenCounter, body: Body, tier: TierPolicy, request: Request
) -> Body | None:
    """The body with its text counted; None: its estimate, as in ``request``, is good enough."""
    bounds = _bounds(runtime, body, tier, request)
    if not runtime.estimator.of(request.tenant).is_between(body.size, bounds):
        return None
    tokens = await counter.count(body.size.texts)
    return None if tokens is None else replace(body, size=replace(body.size, text_tokens=tokens))


def _bounds(runtime: Runtime, body: Body, tier: TierPolicy, request: Request) -> list[float]:
    """Prompts up to these are treated otherwise than longer ones."""
    bounds: list[float] = []
    if tier.prompt_limit is not None and tier.prompt_limit.max_tokens is not None:
        bounds.append(tier.prompt_limit.max_tokens)
    if body.endpoint.generates and runtime.max_model_len is not None:
        output = body.asked_output_tokens or tier.output.default_tokens
        bounds.append((runtime.max_model_len - output) * body.size.prompts)
    scheduler = runtime.dispatcher.scheduler
    demand = scheduler.limits.demand(request) if scheduler is not None else None
    if scheduler is not None and demand is not None:
        clocks = Clocks(runtime.dispatcher.loop.time(), time.time())
        _, room = scheduler.limits.room(request.tenant, request.endpoint, request.model, clocks)
        if room is not None:
            output = demand.tokens - request.prompt_tokens
            bounds += [room.remaining - output, room.limit - output]
    return bounds
