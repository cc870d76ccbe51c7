"""Speculative decoding: what a draft proposes, how much of it is accepted, what it costs.

With ``k`` drafted tokens a decode row computes ``1 + k`` tokens in a step and yields ``1 + a``: the
first ``a`` drafted ones that the target agrees with, and one of its own. The KV slots of the
rejected ones are kept and written again. As in vLLM an engine has one draft, the drafted tokens
count against the step's token budget, a chunk of a prompt is never drafted for, and a row that may
draft less (``EngineRequest.most_drafted_tokens``) saves verification but not the draft's passes.

Each position is accepted with the same probability ``p``, given that all before it were, so
``a`` is geometric, cut at ``k``, and accepted over drafted tokens, which is what vLLM's metrics
call acceptance, is ``(p + p^2 + ... + p^k) / k`` (Leviathan et al. 2023, section 3). ``p`` is found
from the acceptance given for a kind of traffic. How many are accepted at a place of a sequence is a
function of seed, request and place alone, not of when it is computed: two policies that are
compared see the same luck.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from tidegate.simulator.engine_model.calibrations import DraftCalibration
from tidegate.simulator.engine_model.step_time import StepTimeModel

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Speculation:
    """An engine's draft. ``acceptance_percent`` is by kind of traffic (``EngineRequest.traffic``).

    ``lookahead_tokens`` are the KV slots that the draft itself writes beyond the drafted ones of a
    step: ``draft_tokens`` for EAGLE heads and draft models, 0 for n-grams.
    """

    draft_tokens: int
    acceptance_percent: Mapping[str, float]
    pass_time: StepTimeModel
    lookahead_tokens: int = 0
    seed: int = 0
    _chances: dict[str, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.draft_tokens < 1:
            raise ValueError("draft_tokens must be at least 1")
        if self.lookahead_tokens < 0:
            raise ValueError("lookahead_tokens must not be negative")
        chances = {
            kind: chance_of(percent, self.draft_tokens)
            for kind, percent in self.acceptance_percent.items()
        }
        object.__setattr__(self, "_chances", chances)

    @classmethod
    def head(cls, draft: DraftCalibration, draft_tokens: int, seed: int = 0) -> Speculation:
        """An EAGLE head as calibrated."""
        return cls(draft_tokens, draft.acceptance_percent, draft.pass_time, draft_tokens, seed)

    def drafted_for(self, traffic: str, most_tokens: int | None) -> int:
        """How many tokens are drafted for a sequence of that kind; ValueError: an unknown kind."""
        if traffic not in self._chances:
            raise ValueError(f"the draft's acceptance of {traffic!r} traffic is not given")
        return self.draft_tokens if most_tokens is None else min(self.draft_tokens, most_tokens)

    def accepted(self, request_id: str, traffic: str, place: int, drafted: int) -> int:
        """How many of ``drafted`` tokens at ``place`` of a sequence are accepted."""
        chance = self._chances[traffic]
        state = (zlib.crc32(request_id.encode()) << 32) ^ (self.seed << 20) ^ place
        count = 0
        while count < drafted:
            state = (state + 0x9E3779B97F4A7C15) & _MASK
            if _mixed(state) >= chance * 2.0**64:
                break
            count += 1
        return count

    def seconds(self, tokens: int, kv_tokens_read: int, pairs: float, decode_rows: int) -> float:
        """What drafting adds to a step: one pass over its tokens, then one a further position."""
        first = self.pass_time.seconds(tokens, kv_tokens_read, pairs, decode_rows)
        if not decode_rows:
            return first
        more = self.pass_time.seconds(decode_rows, kv_tokens_read, 0.0, decode_rows)
        return first + (self.draft_tokens - 1) * more


@lru_cache(maxsize=256)
def chance_of(acceptance_percent: float, draft_tokens: int) -> float:
    """The chance of one position that gives this share of accepted tokens, by bisection."""
    if not 0 <= acceptance_percent <= 100:
        raise ValueError("an acceptance is a percentage from 0 to 100")
    wanted = acceptance_percent / 100 * draft_tokens
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**position for position in range(1, draft_tokens + 1)) < wanted:
            low = middle
        else:
            high = middle
    return high


def _mixed(state: int) -> int:
    """splitmix64's finaliser (Steele et al. 2014)."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)
