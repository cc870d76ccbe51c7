"""VTC in front of an engine: the tenant with the least counter goes next, tiers or none.

Theory of operation (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): a
tenant's counter rises by its prompt tokens when a request is sent and by twice its output tokens as
they come, divided by the tenant's weight; a tenant whose queue was empty is lifted to the least
counter of those that wait. The paper's scheduler sits in the engine's admission; here the
production gate stands in its place, so that the counters are as late-bound as ours.
"""

from __future__ import annotations

from collections import Counter, deque

from tidegate.scheduling.contracts import Policy
from tidegate.scheduling.gate import Gate
from tidegate.scheduling.outcomes import Outcome
from tidegate.simulator.service_gap import INPUT_PRICE, OUTPUT_PRICE
from tidegate.simulator.simulation.group import Ended, Group, StepEvents
from tidegate.simulator.simulation.request import SimRequest


class VtcFront:
    """Virtual token counters behind the production gate."""

    def __init__(self, policy: Policy) -> None:
        self._gate = Gate(policy.engine, 0.0)
        self._weights = {tenant.name: tenant.weight for tenant in policy.tenants}
        self._counters: dict[str, float] = {}
        self._queues: dict[str, deque[SimRequest]] = {}
        """Of tenants that wait; empty ones are dropped."""
        self._queued: Counter[str] = Counter()

    def attach(self, group: Group) -> None:
        self._group = group

    def submit(self, request: SimRequest, now: float) -> Outcome | None:
        if not self._group.fits(request):
            return Outcome.ENGINE_REFUSED
        tenant = request.tenant
        if tenant not in self._queues:
            least = min((self._counters[name] for name in self._queues), default=0.0)
            self._counters[tenant] = max(self._counters.get(tenant, 0.0), least)
            self._queues[tenant] = deque()
        self._queues[tenant].append(request)
        self._queued[request.tier] += 1
        self._pump(now)
        return None

    def _pump(self, now: float) -> None:
        while self._queues and self._gate.is_open():
            tenant = min(self._queues, key=self._counters.__getitem__)
            request = self._queues[tenant].popleft()
            if not self._queues[tenant]:
                del self._queues[tenant]
            self._queued[request.tier] -= 1
            prompt_tokens = request.planned.prompt_tokens
            self._charge(tenant, INPUT_PRICE * prompt_tokens)
            self._gate.dispatched(request.id, 1, prompt_tokens, now)
            self._group.send(request, 0, now)

    def stepped(self, events: StepEvents, now: float) -> None:
        self._gate.step(now, bool(self._queues))
        for request in events.started:
            self._gate.started(request.id, now)
        for sequence in (*events.started, *events.progressed, *events.finished):
            assert sequence.engine is not None
            tokens = sequence.engine.output_tokens - sequence.told_tokens
            sequence.told_tokens += tokens
            self._charge(sequence.tenant, OUTPUT_PRICE * tokens)
        for request in events.finished:
            self._gate.ended(request.id, now)
        self._pump(now)

    def _charge(self, tenant: str, tokens: float) -> None:
        self._counters[tenant] += tokens / self._weights.get(tenant, 1)

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
