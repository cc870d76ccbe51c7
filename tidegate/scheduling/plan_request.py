"""What a step plan reads and what it says: the data between the step planner and its host.

The host (the plug-in inside vLLM, and its place in the simulator) keeps one ``PlanRequest`` per
engine sequence, updates its counters, and calls ``StepPlanner.plan(StepState(...))`` once before
each step. It then does what the ``StepPlan`` says and nothing else: preempt, withhold tokens, let
in, shorten drafts. All of it can be done with the hooks of vLLM's scheduler 0.32 (order of the
running list, a clip of one request's tokens, a veto of one that waits, a preemption and fewer draft
tokens before ``schedule()``). Where there is no plug-in, ``places`` asks the rules of admission in
the same terms, without a planner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class Veto(StrEnum):
    """Why a request that waits does not enter in this step."""

    RECOMPUTE_BACKOFF = "recompute_backoff"
    """Preempted a moment ago; those behind it go first."""
    KV_QUOTA = "kv_quota"
    """Its KV pool is at nominal + what it may borrow."""
    KV_FULL = "kv_full"
    """Its blocks are not free, now or when those that run have grown."""
    KV_PENDING = "kv_pending"
    """Its blocks are being freed by steps in flight."""
    NO_SEAT = "no_seat"
    PREFILL_BUDGET = "prefill_budget"


class StepTimeModel(Protocol):
    """How long a step would take, in seconds; never shorter for more."""

    def seconds(self, tokens: int, kv_tokens_read: int, attention_pairs: float) -> float:
        """``tokens``: all of the step; ``kv_tokens_read``: the context that decodes read;
        ``attention_pairs``: over prefill chunks, chunk x (context + chunk / 2)."""


@dataclass(slots=True, eq=False)
class PlanRequest:
    """One engine sequence, from its arrival at the engine to its end.

    The host sets the first group once, and keeps the second true at every call of ``plan``; the
    last one belongs to the planner.
    """

    id: str
    tier: int
    """Index into ``StepPolicy.tiers``."""
    tenant: str
    sequence: int
    """Rising in order of dispatch, unique; a preempted request keeps its own."""
    prompt_tokens: int
    max_output_tokens: int
    expected_output_tokens: int = 0
    """90th percentile of its whole output, as predicted; 0: ``max_output_tokens``."""
    weight: int = 1
    """Of its tenant, within the tier."""

    total_tokens: int = 0
    """Prompt and output so far (with vLLM's placeholders of steps in flight)."""
    computed_tokens: int = 0
    blocks: int = 0
    """KV blocks it holds."""
    shared_blocks: int = 0
    """Of ``blocks``, those that others hold too: its preemption would not free them."""
    decode_tokens: int = 1
    """Tokens of a decode step: 1 and its drafts."""
    preemptions: int = 0
    not_before: float = 0.0
    """End of its recompute back-off (``StepPlanner.preempted`` sets it)."""
    cached_hit_tokens: int = 0
    """While it waits: tokens that the prefix cache holds of it, less than ``total_tokens``."""
    shared_hit_blocks: int = 0
    """While it waits: of the blocks hit, those that running requests hold (they cost nothing)."""

    projected_blocks: int = field(default=0, init=False)
    """Blocks at its expected end; 0: not computed yet."""

    def __post_init__(self) -> None:
        if not self.total_tokens:
            self.total_tokens = self.prompt_tokens
        if not 0 < self.expected_output_tokens <= self.max_output_tokens:
            self.expected_output_tokens = self.max_output_tokens


class Lookup(Protocol):
    """Sets ``cached_hit_tokens`` and ``shared_hit_blocks`` of a request that waits."""

    def __call__(self, request: PlanRequest) -> object: ...


@dataclass(frozen=True, slots=True)
class StepState:
    """What a step finds. Blocks are KV blocks; pools are indices into ``StepPolicy.pools``."""

    now: float
    running: Sequence[PlanRequest]
    """Those with a seat, in any order."""
    waiting: Sequence[Iterable[PlanRequest]]
    """By tier (index), each in rising sequence; read only as far as needed."""
    free_blocks: int
    """Allocatable now: blank ones and cached ones that nobody holds."""
    cached_blocks_by_pool: Sequence[int]
    """Of the free ones, those with content that was computed for a tier of that pool."""
    held_blocks_by_pool: Sequence[int] | None = None
    """Blocks held, each once per pool however many share it, with those of requests that hold
    blocks while they wait; None: the sum of ``PlanRequest.blocks``."""
    pending_free_blocks: int = 0
    """Given up already, but not free before the steps in flight have ended."""
    step_time: StepTimeModel | None = None
    """Needed for InterTokenLatency objectives; None: the fixed budget holds."""
    lookup: Lookup | None = None
    """Called at most once in a step per request considered, before it is; None: the fields are
    right as they are."""
    prefilling: Sequence[PlanRequest] | None = None
    """Those of ``running`` that have more than one token to compute, in the same order, where the
    host knows them anyway; None: the planner looks for itself. If ``running`` is besides the very
    tuple of the step before, what was found then holds again (``phases``)."""


@dataclass(slots=True)
class StepPlan:
    """What the step does. Requests are named by ``PlanRequest.id``."""

    preempt: list[PlanRequest] = field(default_factory=list)
    """Running ones that give up seat and blocks before the step; each once. The host tells
    ``StepPlanner.preempted`` of each, keeps them out of this step, and returns them to waiting."""
    grants: dict[str, int] = field(default_factory=dict)
    """Prefill tokens, by request: running or about to be admitted. A prefill that is not named
    gets none. Decodes are not named: they run unless paused."""
    paused: set[str] = field(default_factory=set)
    """Decodes that keep their blocks and do nothing in this step."""
    admit: list[PlanRequest] = field(default_factory=list)
    """Waiting ones that enter, in this order; nobody else may."""
    vetoed: dict[str, Veto] = field(default_factory=dict)
    """Those looked at that may not enter. Who was not looked at stands behind one of them."""
    unhash_pools: frozenset[int] = frozenset()
    """Pools over their cached share while blank blocks run short: what their requests give up in
    this step (ended or preempted, and held by nobody else) is un-hashed before it is freed."""
    drafts: dict[str, int] = field(default_factory=dict)
    """Most draft tokens, by request; who is not named keeps its own. The host sees to it before the
    step; ``PlanRequest.decode_tokens`` says the same already."""
    preempted_for: dict[str, str] = field(default_factory=dict)
    """By victim: the request that it makes room for (its own id: its own growth)."""

    def most_tokens(self, running: Iterable[PlanRequest]) -> Mapping[str, int]:
        """The clip of each running request that does not decode freely, and of each admitted; of
        those that run only the ones that prefill are looked at."""
        clip = {one.id: 0 for one in running if one.total_tokens - one.computed_tokens > 1}
        clip.update(self.grants)
        clip.update(dict.fromkeys(self.paused, 0))
        return clip
