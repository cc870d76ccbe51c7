"""Seats and KV blocks of the engine, where no plug-in keeps them: who may enter, and whom for.

Theory of operation. The rules are those of the plug-in (``step_admission`` over ``kv_quota`` and
``preemption``), asked before a dispatch instead of before a step, with what can be known from here:
how many blocks the engine has is its own figure, what each request holds is counted from its prompt
and the tokens seen of it, and what it will hold is projected from its tenant's past. Blocks that a
tenant's requests are expected to find in the prefix cache count once for those of it in flight.

A victim must be one whose client has seen nothing yet (:attr:`Ticket.evictable`): it is cut off at
the engine, waits for its recompute back-off and returns to its old place. Growth is the engine's
own: an engine without a plug-in that runs out of blocks preempts by itself.

Who may not enter keeps its tier out until the next attempt and takes no room in the gate of others.

Not in force, and free of cost, where nothing asks for it (no KV pool, no evictable tier), where the
engine does not tell its blocks, in the modes that keep arrival order, or beside a plug-in.
Cost: O(requests in flight) an attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidegate.scheduling.contracts import Policy, SchedulingMode
from tidegate.scheduling.engine_prefills import DEFAULT_BUDGET_TOKENS
from tidegate.scheduling.kv_projection import project
from tidegate.scheduling.plan_request import PlanRequest, StepPlan, StepState, Veto
from tidegate.scheduling.recompute import backoff_seconds
from tidegate.scheduling.request import Request
from tidegate.scheduling.step_admission import Admission
from tidegate.scheduling.step_policy import (
    EngineSize,
    StepPolicy,
    compile_step_policy,
    kv_pool_names,
)
from tidegate_sidecar.ticket import Ticket

MANY_SEATS = 1 << 20
"""Where the engine's seats are not known, none is short."""
NULL_BLOCKS = 1
"""vLLM counts a block that it never gives away."""


class Verdict(NamedTuple):
    """Whether a request may enter the engine."""

    veto: Veto | None
    victims: Sequence[Ticket]
    """Who must make room first."""


class PoolBlocks(NamedTuple):
    """One KV pool now."""

    name: str
    """Empty: of the tiers that are in none."""
    nominal: int
    held: int
    borrowed: int
    """Of those held, the ones above nominal."""


class Places:
    """Of one engine."""

    def __init__(self) -> None:
        self.muted = False
        """A plug-in keeps them."""
        self._policy: Policy | None = None
        self._weights: dict[str, tuple[str, int]] = {}
        """Tier and weight, by tenant."""
        self._blocks: tuple[int, int] | None = None
        """How many the engine has, and the tokens of each."""
        self._terms: StepPolicy | None = None
        self._held: dict[Ticket, PlanRequest | None] = {}
        """All in flight; None: of no tenant of the policy, or not counted."""

    @property
    def in_force(self) -> bool:
        """Whether anybody is asked."""
        return self._terms is not None and not self.muted

    def apply_policy(self, policy: Policy) -> None:
        """New terms; O(tenants)."""
        self._policy = policy
        self._weights = {row.name: (row.tier, row.weight) for row in policy.tenants}
        self._compile()

    def engine_blocks(self, blocks: int | None, block_tokens: int | None) -> None:
        """What the engine tells of its KV cache; None: nothing."""
        known = (blocks, block_tokens) if blocks and block_tokens else None
        if known != self._blocks:
            self._blocks = known
            self._compile()

    def _compile(self) -> None:
        policy, blocks = self._policy, self._blocks
        self._terms = None
        if policy is not None and blocks is not None and _asks_for_it(policy):
            engine = EngineSize(
                max(blocks[0] - NULL_BLOCKS, 1),
                blocks[1],
                policy.engine.max_num_seqs or MANY_SEATS,
                policy.engine.max_num_batched_tokens or DEFAULT_BUDGET_TOKENS,
            )
            self._terms = compile_step_policy(policy, engine)
        for ticket in self._held:
            self.entered(ticket)

    def tier_of(self, request: Request) -> str:
        """The tier of its tenant; KeyError: that has left the policy."""
        return self._weights[request.tenant][0]

    def entered(self, ticket: Ticket) -> None:
        """It goes to the engine."""
        self._held[ticket] = None if self._terms is None else self._plan_request(ticket.request)

    def left(self, ticket: Ticket) -> None:
        """It holds nothing any more."""
        del self._held[ticket]

    def ask(self, request: Request, heads: Iterable[Request], seat_short: bool) -> Verdict:
        """Whether it may enter now. ``heads``: who is first of each tier that waits;
        ``seat_short``: none is free, but for a victim's."""
        terms = self._terms
        asking = None if terms is None else self._plan_request(request)
        if terms is None or asking is None:
            return Verdict(None, ())
        running: list[list[PlanRequest]] = [[] for _ in terms.tiers]
        prefilling: list[list[PlanRequest]] = [[] for _ in terms.tiers]
        tickets = {}
        spared = {}
        for ticket, one in self._counted(terms):
            running[one.tier].append(one)
            if ticket.first_token_at is None:
                prefilling[one.tier].append(one)
            if not ticket.evictable:
                spared[one.id] = 0
            tickets[one.id] = ticket
        held = _held_by_pool(terms, running)
        plan = StepPlan(grants=spared)  # whom a grant names, nobody preempts
        nothing = [0] * len(terms.pools)
        state = StepState(
            now=0.0,
            running=[one for tier in running for one in tier],
            waiting=(),
            free_blocks=max(terms.engine.total_blocks - sum(held), 0),
            cached_blocks_by_pool=nothing,
            held_blocks_by_pool=held,
        )
        first: list[PlanRequest | None] = [None] * len(terms.tiers)
        for head in heads:
            if (waiting := self._plan_request(head)) is not None:
                first[waiting.tier] = waiting
        admission = Admission(terms, state, plan, running, prefilling, nothing, first)
        # The gate counts seats, in sequences.
        admission.seats.free = 0 if seat_short else MANY_SEATS
        if request.expected_cached_tokens and any(
            one.tenant == asking.tenant for one in running[asking.tier]
        ):
            asking.shared_hit_blocks = request.expected_cached_tokens // terms.engine.block_size
        veto = admission.enter(asking)
        return Verdict(veto, [tickets[one.id] for one in plan.preempt])

    def pools(self) -> list[PoolBlocks]:
        """Every KV pool; empty ones until the engine has told its blocks."""
        terms = self._terms
        if terms is None:
            policy = self._policy
            named = kv_pool_names(policy) if policy is not None and _counts_blocks(policy) else ()
            return [PoolBlocks(name, 0, 0, 0) for name in named]
        running: list[list[PlanRequest]] = [[] for _ in terms.tiers]
        for _, one in self._counted(terms):
            running[one.tier].append(one)
        return [
            PoolBlocks(pool.name, pool.nominal_blocks, held, max(held - pool.nominal_blocks, 0))
            for pool, held in zip(terms.pools, _held_by_pool(terms, running), strict=True)
        ]

    def held_by_tier(self) -> dict[str, int]:
        """KV blocks of each tier's requests; empty where none are counted."""
        terms = self._terms
        if terms is None:
            return {}
        held = dict.fromkeys((tier.name for tier in terms.tiers), 0)
        for _, one in self._counted(terms):
            held[terms.tiers[one.tier].name] += one.blocks - one.shared_blocks
        return held

    def backoff_seconds(self, request: Request, queued_requests: int) -> float:
        """How long it waits after a preemption, so many waiting in our queues."""
        terms = self._terms
        if terms is None or request.tenant not in self._weights:
            return 0.0
        tier = terms.tiers[terms.tier_index(self.tier_of(request))]
        return backoff_seconds(tier, queued_requests)

    def _counted(self, terms: StepPolicy) -> Iterable[tuple[Ticket, PlanRequest]]:
        """Who is in flight, with what it holds by now."""
        size = terms.engine.block_size
        tenants: set[str] = set()
        for ticket, one in self._held.items():
            if one is None:
                continue
            request = ticket.request
            one.total_tokens = request.prompt_tokens + ticket.output_tokens
            one.computed_tokens = max(one.total_tokens - max(ticket.unfilled_tokens, 1), 0)
            one.blocks = -(-one.computed_tokens // size)
            one.preemptions = ticket.preemptions
            one.shared_blocks = 0
            if one.tenant in tenants:
                one.shared_blocks = min(request.expected_cached_tokens // size, one.blocks)
            tenants.add(one.tenant)
            if not one.projected_blocks:
                project(one, size)  # counts from its dispatch on, before it has any
            yield ticket, one

    def _plan_request(self, request: Request) -> PlanRequest | None:
        """As the rules see it; None: its tenant has left the policy."""
        assert self._terms is not None
        row = self._weights.get(request.tenant)
        if row is None:
            return None
        return PlanRequest(
            id=request.id,
            tier=self._terms.tier_index(row[0]),
            tenant=request.tenant,
            sequence=request.sequence or 0,
            prompt_tokens=request.prompt_tokens,
            max_output_tokens=max(request.max_output_tokens, 1),
            expected_output_tokens=request.expected_output_tokens,
            weight=row[1],
        )


def _asks_for_it(policy: Policy) -> bool:
    return policy.scheduling_mode is SchedulingMode.TIDEGATE and _counts_blocks(policy)


def _counts_blocks(policy: Policy) -> bool:
    return bool(policy.kv_pools) or any(tier.preemption.evictable for tier in policy.tiers)


def _held_by_pool(terms: StepPolicy, running: Sequence[Sequence[PlanRequest]]) -> list[int]:
    held = [0] * len(terms.pools)
    for tier, those in zip(terms.tiers, running, strict=True):
        held[tier.pool] += sum([one.blocks - one.shared_blocks for one in those])
    return held
