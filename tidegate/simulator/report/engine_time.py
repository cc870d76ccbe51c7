"""Whose requests the engines' busy time was spent on.

Tokens are no measure of it: in a full batch an output token takes several times what a prompt token
does. Theory of operation: the step-time model is linear in what a request adds to a step (tokens,
rows, context read, attention pairs), so that part is added up per request. What a step takes
whatever is in it (weights read once, launch) belongs to all requests of the step alike, so the rest
of the busy time is split by the number of steps that a request took part in: one for each output
token, one for the prompt.

Invariant: the times of all requests sum to ``busy_seconds``. A request that has no first token yet
is charged nothing: how far its prefill came is in no record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tidegate.simulator.engine_model import StepTimeModel
from tidegate.simulator.simulation.result import RequestRecord


def engine_seconds(
    records: Iterable[RequestRecord], model: StepTimeModel, busy_seconds: float
) -> dict[str, float]:
    """Busy seconds by tier."""
    own: dict[str, float] = defaultdict(float)
    steps: dict[str, int] = defaultdict(int)
    for record in records:
        if record.first_token is not None:
            own[record.tier] += added_seconds(record, model)
            steps[record.tier] += 1 + record.output_tokens
    added, most = sum(own.values()), sum(steps.values())
    if added > busy_seconds:
        # Steps at the memory-bound floor: their tokens took no time of their own.
        return {tier: busy_seconds * seconds / added for tier, seconds in own.items()}
    return {
        tier: seconds + (busy_seconds - added) * steps[tier] / most for tier, seconds in own.items()
    }


def added_seconds(record: RequestRecord, model: StepTimeModel) -> float:
    """What the request added to the steps that it was in; nothing without a first token."""
    if record.first_token is None:
        return 0.0
    computed = max(0, record.prompt_tokens - record.cached_tokens)
    output = record.output_tokens
    context = record.prompt_tokens + output / 2
    return (
        model.per_token_seconds * (computed + record.recomputed_tokens + output)
        + model.per_row_seconds * (1 + output)
        + model.per_kv_token_seconds * output * context
        + model.per_pair_seconds
        * (
            computed * (record.prompt_tokens - computed / 2)
            + record.recomputed_tokens * context / 2
        )
    )
