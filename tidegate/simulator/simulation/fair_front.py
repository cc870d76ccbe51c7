"""Start-time fair queueing with true costs in front of an engine: the reference of fair response.

It knows what no scheduler can: how long each answer will be. A request costs what it adds to the
engine's steps (``true_cost_seconds``), so that the reference shares the engine's time. Tiers are
their tenants' weights, nothing else; the production gate stands between it and the engine.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.scheduling.contracts import Policy
from tidegate.simulator.engine_model import StepTimeModel
from tidegate.simulator.simulation.gated_front import GatedFront
from tidegate.simulator.simulation.group import StepEvents
from tidegate.simulator.simulation.request import SimRequest
from tidegate.simulator.start_time_fair_queueing import StartTimeFairQueueing


def true_cost_seconds(
    model: StepTimeModel, prompt_tokens: int, cached_tokens: int, output_tokens: int
) -> float:
    """What a request adds to the steps that it is in, in seconds of the engine."""
    computed = prompt_tokens - cached_tokens
    context = prompt_tokens + output_tokens / 2
    return (
        model.per_token_seconds * (computed + output_tokens)
        + model.per_row_seconds * (1 + output_tokens)
        + model.per_kv_token_seconds * output_tokens * context
        + model.per_pair_seconds * computed * (cached_tokens + computed / 2)
    )


class FairFront(GatedFront):
    """One queue of tenants; ``weights`` by tier, 1 where unnamed."""

    def __init__(self, policy: Policy, model: StepTimeModel, weights: Mapping[str, float]) -> None:
        super().__init__(policy)
        self._model = model
        self._queue: StartTimeFairQueueing[SimRequest] = StartTimeFairQueueing()
        for tenant in policy.tenants:
            share = weights.get(tenant.tier, 1.0) * tenant.weight
            self._queue.set_weight(tenant.name, share)

    def _enqueue(self, request: SimRequest) -> None:
        self._queue.push(request.tenant, request)

    def _waits(self) -> bool:
        return self._queue.first() is not None

    def _send_next(self, now: float) -> SimRequest:
        request = self._queue.first()
        assert request is not None
        planned = request.planned
        sequence = self._group.send(request, 0, now)
        block_size = self._group.engine.config.block_size
        hits = self._group.engine.kv.lookup(
            sequence.block_hash, (planned.prompt_tokens - 1) // block_size
        )
        cost = true_cost_seconds(
            self._model, planned.prompt_tokens, len(hits) * block_size, planned.output_tokens
        )
        self._queue.pop(cost)
        return request

    def _computed(self, events: StepEvents) -> None:
        """Its true cost was charged when it was sent."""
