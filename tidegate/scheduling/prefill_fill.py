"""Which prefills get the tokens of a step's budget.

Theory of operation: tiers that are owed tokens first, then all in order (``prefill_shares``), each
along its line (``prefill_line``). Long prompts step aside until the shorter ones of their tier have
what they need; then they share what is left, in order. Once one is due it takes its turn in the
line, with at most half of what is there (and the rest of less than a block's worth that no short
one can enter with). A waiting request enters when there are tokens for it and ``step_admission``
has room; one that may not enter holds up those behind it in its tier and nobody else. So nobody is
passed in blocks but, until it is due, a long prompt by short ones. Tiers that stand back for a
protected prompt (``step_plan``) come last, and only if no such prompt got tokens.

Bound: reads at most one waiting request per tier beyond those that get tokens, step aside or are in
back-off. Source: source 000, incident A; one budget over running and waiting prefills in place of
vLLM 0.32's order, which is all that run first.

Invariants: a request gets at most what it has left to compute and ``chunk_tokens``; one that waits
gets at least a block's worth (or all it wants) in the step it enters; a running one never gets more
than its blocks and the free ones hold; a victim gets nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from tidegate.scheduling.plan_request import Lookup, PlanRequest, StepPlan, Veto
from tidegate.scheduling.prefill_budget import StepBudget
from tidegate.scheduling.prefill_line import PrefillLine
from tidegate.scheduling.prefill_shares import PrefillShares
from tidegate.scheduling.step_admission import Admission
from tidegate.scheduling.step_policy import StepPolicy


class PrefillFill:
    """Spends the budget of one step on the lines of all tiers; fills ``plan``."""

    __slots__ = (
        "_admission", "_budget", "_entered", "_granted", "_least_tokens", "_lines",
        "_long_granted", "_lookup", "_plan", "_policy", "_shares", "_taken_blocks", "_wants_more",
    )  # fmt: skip

    def __init__(
        self,
        policy: StepPolicy,
        plan: StepPlan,
        lines: Sequence[PrefillLine],
        shares: PrefillShares,
        budget: StepBudget,
        admission: Admission,
        lookup: Lookup | None,
    ) -> None:
        self._policy, self._plan, self._lines = policy, plan, lines
        self._shares, self._budget, self._admission = shares, budget, admission
        self._lookup = lookup
        self._least_tokens = min(
            policy.engine.block_size, max(policy.prefill_budget_tokens // 2, 1)
        )
        self._entered: set[str] = set()
        self._taken_blocks: dict[str, int] = {}
        self._granted = [0] * len(lines)
        self._wants_more = [False] * len(lines)
        self._long_granted: list[bool | None] = [None] * len(lines)

    def fill(
        self, standing_back: Collection[int], decoding: Sequence[Sequence[PlanRequest]]
    ) -> bool:
        """Spend the budget; whether those tiers stand back (True) or take part after all.

        They take part, with their prompts and their decodes, if no protected prompt got tokens.
        """
        for tier, tokens in self._shares.due():
            if tier not in standing_back:
                self._serve_owed(tier, tokens)
        self._serve(tier for tier in range(len(self._lines)) if tier not in standing_back)
        tiers = self._policy.tiers
        if any(self._granted[tier] for tier in range(len(tiers)) if tiers[tier].protected):
            for tier in standing_back:
                self._wants_more[tier] = bool(self._lines[tier])
        else:
            for tier in standing_back:
                self._budget.add_decodes(decoding[tier])
            self._serve(standing_back)
            standing_back = ()
        self._shares.close(self._granted, self._wants_more, self._long_granted)
        return bool(standing_back)

    def _serve(self, tiers: Iterable[int]) -> None:
        for tier in tiers:
            if self._lines[tier]:
                self._serve_tier(tier, self._lines[tier])

    def _serve_owed(self, tier: int, tokens: int) -> None:
        """Those that run first: they hold blocks."""
        line = self._lines[tier]
        item = line.pop_running() or line.pop()
        if item is None:
            return
        one, waits = item
        if waits and self._lookup is not None:
            self._lookup(one)
        if self._give(one, waits, tokens):
            line.put_back(one)
        else:
            line.hold_up()

    def _serve_tier(self, tier: int, line: PrefillLine) -> None:
        budget, shares = self._budget, self._shares
        half = max(budget.left // 2, 1)
        long_is_due = shares.long_is_due(tier)
        seen: list[PlanRequest] = []
        longs: list[tuple[PlanRequest, bool]] = []
        while budget.left > 0 and (item := line.pop()) is not None:
            one, waits = item
            if one.id in self._plan.preempted_for:
                continue
            if waits and self._lookup is not None:
                self._lookup(one)
            seen.append(one)
            is_long = shares.is_long(self._left_to_compute(one, waits))
            if is_long:
                longs.append(item)
            if (not is_long or long_is_due) and not self._give(
                one, waits, half if is_long else budget.left
            ):
                line.hold_up()
            long_is_due = long_is_due and not is_long
        for one, waits in longs:
            if one.id not in self._plan.vetoed:
                self._give(one, waits, budget.left)
        if longs or shares.is_long(line.most_left_to_compute()):
            self._long_granted[tier] = any(one.id in self._plan.grants for one, _ in longs)
        if budget.left <= 0 and self._refuse_rest(line, seen):
            self._wants_more[tier] = True

    def _refuse_rest(self, line: PrefillLine, seen: Sequence[PlanRequest]) -> bool:
        """The budget is spent; whether anybody of the tier would have computed more."""
        vetoed = self._plan.vetoed
        if line.head is not None:
            vetoed.setdefault(line.head.id, Veto.PREFILL_BUDGET)
        return bool(line) or any(
            vetoed[one.id] is Veto.PREFILL_BUDGET
            if one.id in vetoed
            else self._left_to_compute(one, waits=False) > 0
            for one in seen
        )

    def _left_to_compute(self, request: PlanRequest, waits: bool) -> int:
        return request.total_tokens - self._context(request, waits)

    def _context(self, request: PlanRequest, waits: bool) -> int:
        """Tokens computed, cached or granted in this step."""
        if waits or request.id in self._entered:
            return request.cached_hit_tokens + self._plan.grants.get(request.id, 0)
        return request.computed_tokens + self._plan.grants.get(request.id, 0)

    def _give(self, request: PlanRequest, waits: bool, limit_tokens: int) -> bool:
        """Grant what may be; False: it waits and may not enter."""
        context = self._context(request, waits)
        chunk = self._policy.chunk_tokens - self._plan.grants.get(request.id, 0)
        wanted = min(request.total_tokens - context, chunk)
        asked = min(wanted, limit_tokens)
        tokens = allowed = self._budget.most(context, asked, request.tier == 0)
        if waits and request.id not in self._entered:
            veto: Veto | None = Veto.PREFILL_BUDGET
            if tokens >= min(wanted, self._least_tokens):
                veto = self._admission.enter(request)
            if veto is not None:
                self._plan.vetoed[request.id] = veto
                self._wants_more[request.tier] |= veto is Veto.PREFILL_BUDGET
                return False
            self._entered.add(request.id)
            self._plan.admit.append(request)
        elif request.id not in self._entered:
            tokens = self._within_blocks(request, context, tokens)
        if tokens == allowed < asked:
            self._wants_more[request.tier] = True
        if tokens > 0:
            grants = self._plan.grants
            grants[request.id] = grants.get(request.id, 0) + tokens
            self._granted[request.tier] += tokens
            self._budget.take(context, tokens)
        return True

    def _within_blocks(self, request: PlanRequest, context: int, tokens: int) -> int:
        """As many of the tokens as a running request finds blocks for; takes these."""
        size = self._policy.engine.block_size
        taken = self._taken_blocks.get(request.id, 0)
        room = (request.blocks + taken) * size - context
        if tokens <= room:
            return tokens
        new = -(-(tokens - room) // size)
        short = new - self._admission.free_blocks
        if short > 0 and not self._admission.make_room(request, short):
            new = max(self._admission.free_blocks, 0)
        self._admission.commit(request, new)
        self._taken_blocks[request.id] = taken + new
        return min(tokens, room + new * size)
