"""VTC in front of an engine: the tenant with the least counter goes next, tiers or none.

Theory of operation (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): a
tenant's counter rises by its prompt tokens when a request is sent and by twice its output tokens as
they come, divided by the tenant's weight; a tenant whose queue was empty is lifted to the least
counter of those that wait. The paper's scheduler sits in the engine's admission; here the
production gate stands in its place, so that the counters are as late-bound as ours.
"""

from __future__ import annotations

from collections import deque

from tidegate.scheduling.contracts import Policy
from tidegate.simulator.service_gap import INPUT_PRICE, OUTPUT_PRICE
from tidegate.simulator.simulation.gated_front import GatedFront
from tidegate.simulator.simulation.group import StepEvents
from tidegate.simulator.simulation.request import SimRequest


class VtcFront(GatedFront):
    """Virtual token counters behind the production gate."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._weights = {tenant.name: tenant.weight for tenant in policy.tenants}
        self._counters: dict[str, float] = {}
        self._queues: dict[str, deque[SimRequest]] = {}
        """Of tenants that wait; empty ones are dropped."""

    def _enqueue(self, request: SimRequest) -> None:
        tenant = request.tenant
        if tenant not in self._queues:
            least = min((self._counters[name] for name in self._queues), default=0.0)
            self._counters[tenant] = max(self._counters.get(tenant, 0.0), least)
            self._queues[tenant] = deque()
        self._queues[tenant].append(request)

    def _waits(self) -> bool:
        return bool(self._queues)

    def _send_next(self, now: float) -> SimRequest:
        tenant = min(self._queues, key=self._counters.__getitem__)
        request = self._queues[tenant].popleft()
        if not self._queues[tenant]:
            del self._queues[tenant]
        self._charge(tenant, INPUT_PRICE * request.planned.prompt_tokens)
        self._group.send(request, 0, now)
        return request

    def _computed(self, events: StepEvents) -> None:
        for sequence in (*events.started, *events.progressed, *events.finished):
            assert sequence.engine is not None
            tokens = sequence.engine.output_tokens - sequence.told_tokens
            sequence.told_tokens += tokens
            self._charge(sequence.tenant, OUTPUT_PRICE * tokens)

    def _charge(self, tenant: str, tokens: float) -> None:
        self._counters[tenant] += tokens / self._weights.get(tenant, 1)
