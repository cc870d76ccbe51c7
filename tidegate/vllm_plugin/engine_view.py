"""vLLM's scheduler as a ``StepState``: counters of what runs, free and cached blocks, prefix hits.

Theory of operation: everything is read from vLLM's own objects at the beginning of a step; nothing
is remembered but who owns cached blocks (``block_owners``) and, as a place to look first, how many
leading blocks a request shared. Shared blocks are a request's first ones: whoever holds a block
of a prefix holds those before it, so their number is found by stepping from where it was.

A block is a block of one KV cache group; with several groups (hybrid models) each takes its own
from the one pool, so the pool's blocks are divided by their number.

Bound: O(running); where prefixes are shared, besides, O(shared blocks) in the steps in which
their number changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tidegate.scheduling.plan_request import PlanRequest, StepState, StepTimeModel
from tidegate.scheduling.step_policy import EngineSize, StepPolicy
from tidegate.vllm_plugin.block_owners import BlockOwners
from tidegate.vllm_plugin.roster import Entry, Roster
from tidegate.vllm_plugin.vllm_types import VllmBlock, VllmRequest, VllmScheduler

NULL_BLOCKS = 1
"""vLLM's block pool keeps one block as a place-holder."""


class EngineView:
    """One engine, read before each step."""

    def __init__(self, scheduler: VllmScheduler, roster: Roster) -> None:
        self._scheduler = scheduler
        self._roster = roster
        manager = scheduler.kv_cache_manager
        self._pool = manager.block_pool
        self._groups = manager.coordinator.single_type_managers
        self.owners = BlockOwners(self._pool.num_gpu_blocks, self._pool.metrics_collector)
        self._pool.metrics_collector = self.owners
        self._seats: list[VllmRequest] = []
        self._seated: list[tuple[VllmRequest, PlanRequest, list[int], Sequence[VllmBlock]]] = []
        """Those of them in a tier, with their tokens and block tables, which vLLM extends in
        place."""
        self._drafts = scheduler.num_spec_tokens > 0
        self.seats_changed = True
        """Whether anybody came or went since the last look."""
        self._planned: tuple[PlanRequest, ...] = ()
        self._prefilling: list[PlanRequest] = []
        """Of those."""
        self._shared: tuple[tuple[str, int], ...] = ()
        self._duplicates: list[int] = []

    @property
    def size(self) -> EngineSize:
        """What a policy is compiled for."""
        scheduler = self._scheduler
        return EngineSize(
            total_blocks=(self._pool.num_gpu_blocks - NULL_BLOCKS) // max(len(self._groups), 1),
            block_size=scheduler.block_size,
            max_num_seqs=min(scheduler.max_num_active_reqs, scheduler.max_num_running_reqs),
            max_num_batched_tokens=scheduler.max_num_scheduled_tokens,
        )

    def state(
        self, terms: StepPolicy, now: float, step_time: StepTimeModel | None = None
    ) -> StepState:
        """What the step that begins now finds."""
        running = self._follow()
        groups = max(len(self._groups), 1)
        frees = self._scheduler.deferred_frees
        return StepState(
            now=now,
            running=running,
            waiting=[self._ready(lane) for lane in self._roster.lanes],
            free_blocks=self._pool.get_num_free_blocks() // groups,
            cached_blocks_by_pool=self._cached(terms, groups),
            held_blocks_by_pool=self._held(terms, running),
            pending_free_blocks=sum([len(blocks) for _, blocks in frees]) // groups,
            step_time=step_time,
            lookup=self._look_up,
            prefilling=self._prefilling,
        )

    def forget(self) -> None:
        """The roster was made anew."""
        self._seats = []
        self._seated = []
        self._planned = ()

    def _follow(self) -> Sequence[PlanRequest]:
        """Counters of those that run, up to date."""
        if self._scheduler.running != self._seats:  # by identity: requests have no equals
            self._take_seats()
        self._prefilling = prefilling = []
        for request, one, tokens, blocks in self._seated:
            one.computed_tokens = computed = request.num_computed_tokens
            one.total_tokens = total = len(tokens) + request.num_output_placeholders
            if total - computed > 1:
                prefilling.append(one)
            one.blocks = len(blocks)
            if one.shared_blocks or (blocks and blocks[0].ref_cnt > 1):
                one.shared_blocks = _shared_from(blocks, one.shared_blocks)
        if self._drafts:
            for request, one, _, _ in self._seated:
                one.decode_tokens = 1 + len(request.spec_token_ids)
        return self._planned

    def _take_seats(self) -> None:
        entries = self._roster.entries
        tables = self._groups[0].req_to_blocks if self._groups else {}
        self.seats_changed = True
        self._seats = list(self._scheduler.running)
        self._seated = [
            (
                request,
                entries[request.request_id].one,
                request._all_token_ids,
                tables.get(request.request_id, []),
            )
            for request in self._seats
            if request.request_id in entries
        ]
        self._planned = tuple([one for _, one, _, _ in self._seated])

    def _ready(self, lane: Sequence[PlanRequest]) -> Iterator[PlanRequest]:
        """Those of a lane that vLLM would let in: nothing of theirs is in flight."""
        entries = self._roster.entries
        for one in lane:
            request = entries[one.id].request
            if request.num_stale_output_tokens and not request.drop_stale_output:
                continue
            if request.status.name in ("WAITING", "PREEMPTED"):
                yield one

    def blocked(self) -> list[VllmRequest]:
        """Waiting ones that vLLM must look at for itself before they can be planned (their grammar
        is being compiled, say)."""
        entries = self._roster.entries
        return [
            request
            for request in self._scheduler.deferred_waiting
            if request.request_id in entries
            and request.status.name not in ("WAITING", "PREEMPTED", "WAITING_FOR_REMOTE_KVS")
            and not request.num_computed_tokens
        ]

    def _cached(self, terms: StepPolicy, groups: int) -> list[int]:
        cached = [0] * len(terms.pools)
        for tier in terms.tiers:
            cached[tier.pool] += self.owners.cached[tier.name] // groups
        return cached

    def _held(self, terms: StepPolicy, running: Sequence[PlanRequest]) -> list[int] | None:
        """Blocks held, each once per pool; None: nothing is shared."""
        shared = tuple([(one.id, one.shared_blocks) for one in running if one.shared_blocks])
        if not shared:
            return None
        if shared != self._shared or len(self._duplicates) != len(terms.pools):
            self._shared = shared
            self._duplicates = self._count_duplicates(terms, shared)
        held = [-duplicates for duplicates in self._duplicates]
        for one in running:
            held[terms.tiers[one.tier].pool] += one.blocks
        return held

    def _count_duplicates(self, terms: StepPolicy, shared: Sequence[tuple[str, int]]) -> list[int]:
        tables: Mapping[str, list[VllmBlock]] = self._groups[0].req_to_blocks
        once: list[set[int]] = [set() for _ in terms.pools]
        counted = [0] * len(terms.pools)
        for name, count in shared:
            pool = terms.tiers[self._roster.entries[name].one.tier].pool
            counted[pool] += count
            once[pool].update([block.block_id for block in tables[name][:count]])
        return [count - len(those) for count, those in zip(counted, once, strict=True)]

    def _look_up(self, request: PlanRequest) -> None:
        """What the prefix cache holds of a waiting request."""
        one, there = request, self._roster.entries[request.id].request
        manager = self._scheduler.kv_cache_manager
        one.total_tokens = there.num_tokens
        one.cached_hit_tokens = one.shared_hit_blocks = 0
        if not manager.prefix_cache_lookup_enabled(there):
            return
        blocks, tokens, _ = manager.coordinator.find_longest_cache_hit(
            there.block_hashes, there.num_tokens - 1
        )
        one.cached_hit_tokens = tokens
        if blocks:
            one.shared_hit_blocks = sum([block.ref_cnt > 0 for block in blocks[0]])

    def give_up(self, entry: Entry, *, unhash: bool) -> None:
        """Before a request frees its blocks: those that nobody else holds go blank, or into the
        cache in its tier's name."""
        name = entry.request.request_id
        last = [
            block
            for group in self._groups
            for block in group.req_to_blocks.get(name, ())
            if block.ref_cnt == 1 and block.block_hash is not None and not block.is_null
        ]
        if unhash:
            self._scheduler.kv_cache_manager.evict_blocks({block.block_id for block in last})
            return
        for block in last:
            self.owners.keep(block, entry.tier)


def _shared_from(blocks: Sequence[VllmBlock], count: int) -> int:
    """How many of the first blocks others hold too; ``count``: how many did when last seen."""
    count = min(count, len(blocks))
    while count < len(blocks) and blocks[count].ref_cnt > 1:
        count += 1
    while count and blocks[count - 1].ref_cnt <= 1:
        count -= 1
    return count
