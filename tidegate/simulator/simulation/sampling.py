"""The state of a run once a second, for plots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tidegate.simulator.engine_model import EngineRequest
from tidegate.simulator.simulation.group import Group
from tidegate.simulator.simulation.result import TimeSample
from tidegate.workload.clients.client import Workload

MOST_TENANTS = 64
"""Beyond it a sample names no tenants: 10,000 of them a second would be the whole result."""


class Sampler:
    """Reads groups. Service is what requests have computed so far, recomputed tokens left out."""

    def __init__(self, groups: Sequence[Group], workload: Workload) -> None:
        self._groups = groups
        self._tiers = workload.tiers
        self._by_tenant = len(workload.tenants) <= MOST_TENANTS
        self._ended_tier: dict[str, float] = defaultdict(float)
        self._ended_tenant: dict[str, float] = defaultdict(float)
        for group in groups:
            group.on_end = self._end

    def _end(self, sequence: EngineRequest, tier: str, tenant: str) -> None:
        tokens = computed(sequence)
        self._ended_tier[tier] += tokens
        self._ended_tenant[tenant] += tokens

    def take(self, now: float) -> TimeSample:
        """One sample."""
        queued = dict.fromkeys(self._tiers, 0)
        running = dict.fromkeys(self._tiers, 0)
        blocks = dict.fromkeys(self._tiers, 0)
        service = {tier: self._ended_tier[tier] for tier in self._tiers}
        tenants = dict(self._ended_tenant) if self._by_tenant else {}
        for group in self._groups:
            for tier, waiting in group.front.queued().items():
                queued[tier] += waiting
            seated = set(group.engine.running)
            for request in group.requests.values():
                sequence = request.engine
                assert sequence is not None
                tier = request.tier
                if sequence in seated:
                    running[tier] += 1
                    blocks[tier] += len(sequence.blocks)
                else:
                    queued[tier] += 1
                tokens = computed(sequence)
                service[tier] += tokens
                if self._by_tenant:
                    tenants[request.tenant] = tenants.get(request.tenant, 0.0) + tokens
        return TimeSample(
            time=now,
            queued=queued,
            running=running,
            kv_blocks=blocks,
            kv_cached_blocks=sum(group.engine.kv.cached_blocks for group in self._groups),
            kv_total_blocks=sum(group.engine.kv.total_blocks for group in self._groups),
            service_tokens=service,
            tenant_service_tokens=tenants,
        )


def computed(sequence: EngineRequest) -> int:
    """Tokens that the engine has worked on for it: of its prompt without cache hits, and output."""
    known = sequence.prompt_tokens + sequence.output_tokens
    if sequence.output_tokens:
        return known - sequence.cached_tokens
    return max(sequence.computed_tokens - sequence.cached_tokens, 0)
