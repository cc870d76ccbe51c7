"""Start-time fair queueing with true costs in front of an engine: the reference of fair response.

It knows what no scheduler can: how long each answer will be. A request costs what it adds to the
engine's steps (``true_cost_seconds``), so that the reference shares the engine's time. Tiers are
their tenants' weights, nothing else; the production gate stands between it and the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tidegate.scheduling.contracts import Policy
from tidegate.scheduling.gate import Gate
from tidegate.scheduling.outcomes import Outcome
from tidegate.simulator.engine_model import StepTimeModel
from tidegate.simulator.simulation.group import Ended, Group, StepEvents
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


class FairFront:
    """One queue of tenants; ``weights`` by tier, 1 where unnamed."""

    def __init__(self, policy: Policy, model: StepTimeModel, weights: Mapping[str, float]) -> None:
        self._gate = Gate(policy.engine, 0.0)
        self._model = model
        self._queue: StartTimeFairQueueing[SimRequest] = StartTimeFairQueueing()
        for tenant in policy.tenants:
            share = weights.get(tenant.tier, 1.0) * tenant.weight
            self._queue.set_weight(tenant.name, share)
        self._queued: Counter[str] = Counter()

    def attach(self, group: Group) -> None:
        self._group = group

    def submit(self, request: SimRequest, now: float) -> Outcome | None:
        if not self._group.fits(request):
            return Outcome.ENGINE_REFUSED
        self._queue.push(request.tenant, request)
        self._queued[request.tier] += 1
        self._pump(now)
        return None

    def _pump(self, now: float) -> None:
        while (request := self._queue.first()) is not None and self._gate.is_open():
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
            self._queued[request.tier] -= 1
            self._gate.dispatched(request.id, 1, planned.prompt_tokens, now)

    def stepped(self, events: StepEvents, now: float) -> None:
        self._gate.step(now, self._queue.first() is not None)
        for request in events.started:
            self._gate.started(request.id, now)
        for request in events.finished:
            self._gate.ended(request.id, now)
        self._pump(now)

    def tick(self, now: float) -> Ended:
        engine = self._group.engine
        used = engine.kv.held_blocks / engine.kv.total_blocks
        self._gate.engine_metrics(len(engine.running), len(engine.waiting), used, now)
        self._pump(now)
        return ()

    def queued(self) -> dict[str, int]:
        return dict(self._queued)

    def notes(self) -> dict[str, float]:
        return {"gate window": float(self._gate.window)}
