"""The gates of one engine: one for all tiers or, beside the plug-in, one for each.

Theory of operation: without the plug-in the engine's queue has the engine's order, so what waits in
it is in everybody's way and one gate keeps it short; seats that all are taken come back one by one,
so some stay free for tiers with a reservation (``spare_seats``). The plug-in keeps the tiers' order
inside the engine; then a request that it vetoes, preempts or computes slowly must take no room from
any other tier, so each tier has a gate of its own, which knows what its tier may hold of the KV
cache. Told is then the part of a prompt that the prefix cache is expected to leave.

Bound: O(tiers) a question. Source: design section 2 (the gate; a vetoed or preempted request takes
no room in that of another tier).

Invariant: a request ends at the gate that let it through, whatever tier its tenant is in by then.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from tidegate.scheduling.contracts import Policy, SloMetric, Task
from tidegate.scheduling.engine_prefills import DEFAULT_BUDGET_TOKENS
from tidegate.scheduling.gate import Gate
from tidegate.scheduling.request import Request
from tidegate.scheduling.spare_seats import SpareSeats
from tidegate.scheduling.tokens_in_flight_gate import TokensInFlightGate

_ALL = ""


class Gates:
    """Of one engine; ``by_tier``: it has the plug-in."""

    def __init__(self, policy: Policy, *, by_tier: bool) -> None:
        self._by_tier = by_tier
        self._gates: dict[str, Gate | TokensInFlightGate] = {}
        self._passed: dict[str, Gate | TokensInFlightGate] = {}
        """By request in flight."""
        self._tier_of: dict[str, str] = {}
        self._spare = SpareSeats()
        self.apply_policy(policy)

    @property
    def window(self) -> int:
        """Sequences that may be dispatched and not started, over all gates."""
        return sum(gate.window for gate in self._gates.values())

    @property
    def not_started(self) -> int:
        """Sequences dispatched and not started."""
        return sum(gate.not_started for gate in self._all())

    @property
    def in_flight(self) -> int:
        """Sequences dispatched and not ended."""
        return sum(gate.in_flight for gate in self._all())

    def _all(self) -> set[Gate | TokensInFlightGate]:
        return {*self._gates.values(), *self._passed.values()}

    def apply_policy(self, policy: Policy) -> None:
        """Hot reload: limits, and a gate for each tier that is new; those in flight stay counted
        where they are."""
        names = [tier.name for tier in policy.tiers] if self._by_tier else [_ALL]
        kind = TokensInFlightGate if policy.model.task is Task.EMBED else Gate
        before = self._gates
        self._gates = {name: before.get(name) or kind(policy.engine) for name in names}
        budget = None if self._by_tier else _prefill_budget_tokens(policy)
        for gate in self._gates.values():
            gate.apply_limits(policy.engine, budget, policy.prefill.chunk_tokens)
        self._tier_of = {tenant.name: tenant.tier for tenant in policy.tenants}
        self._spare.apply_policy(policy.scheduling_mode, () if self._by_tier else policy.tiers)

    def is_open(self) -> bool:
        """Whether any of them is."""
        return any(gate.is_open() for gate in self._gates.values())

    def lacks_place(self, without: Sequence[str] = ()) -> bool:
        """Of the one gate of all tiers, as its own."""
        gate = self._gates.get(_ALL)
        return gate is not None and gate.lacks_place(without)

    def closed(self, now: float) -> Container[str] | None:
        """Names of tiers whose requests may not go now; None: nobody's may."""
        if not self._by_tier:
            return self.held_back(now) if self._gates[_ALL].is_open() else None
        closed = [name for name, gate in self._gates.items() if not gate.is_open()]
        return None if len(closed) == len(self._gates) else closed

    def held_back(self, now: float) -> list[str]:
        """Names of tiers that leave the seats which are free to others."""
        gate = self._gates.get(_ALL)
        if not isinstance(gate, Gate) or gate.seats is None:
            return []
        return self._spare.held_back(gate.seats, now)

    def arrived(self, request: Request, now: float) -> None:
        """A request was taken into the queue."""
        self._spare.arrived(self._tier_of[request.tenant], request.sequences, now)

    def dispatched(self, request: Request) -> None:
        """A request goes to the engine."""
        tier = self._tier_of[request.tenant]
        gate = self._gates[tier if self._by_tier else _ALL]
        tokens = request.prompt_tokens
        if self._by_tier:
            tokens -= request.expected_cached_tokens
        self._passed[request.id] = gate
        self._spare.dispatched(request.id, tier, request.sequences)
        gate.dispatched(request.id, request.sequences, tokens)

    def started(self, request: Request) -> None:
        """Its first token was seen, or told of; later calls change nothing."""
        self._passed[request.id].started(request.id)

    def ended(self, request: Request, now: float) -> None:
        """It has ended, however; exactly once (KeyError: not in flight)."""
        self._passed.pop(request.id).ended(request.id)
        self._spare.ended(request.id, now)

    def step(self, queued: Mapping[str, int]) -> None:
        """The engine ended a step; ``queued``: requests that wait, by tier."""
        if not self._by_tier:
            self._gates[_ALL].step(any(queued.values()))
            return
        for name, gate in self._gates.items():
            gate.step(queued.get(name, 0) > 0)

    def engine_metrics(
        self, running: int | None, waiting: int | None, kv_used_ratio: float | None
    ) -> None:
        """What the engine says of itself; a tier's gate takes nothing from what is of all tiers."""
        if not self._by_tier:
            self._gates[_ALL].engine_metrics(running, waiting, kv_used_ratio)

    def kv_held(self, ratios: Mapping[str, float]) -> None:
        """What each tier holds of what it could hold now, 0..1, as the plug-in tells."""
        for name, ratio in ratios.items():
            if (gate := self._gates.get(name)) is not None:
                gate.engine_metrics(None, None, ratio)


def _prefill_budget_tokens(policy: Policy) -> int | None:
    """Of a step, where a tier was promised a time between tokens; None: nobody was."""
    if all(tier.slo_seconds(SloMetric.INTER_TOKEN_LATENCY) is None for tier in policy.tiers):
        return None
    budget = policy.engine.max_num_batched_tokens or DEFAULT_BUDGET_TOKENS
    return policy.prefill.budget_tokens(budget)
