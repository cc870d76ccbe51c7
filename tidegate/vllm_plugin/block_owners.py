"""Which tier the content of each cached block was computed for.

Theory of operation: vLLM's block pool has no owners. A block becomes *cached* when its last holder
gives it up with its hash: that is seen where requests free their blocks. It stops being cached when
it is hit again or handed out: both are told to the block pool's metrics collector, whose place this
object takes (and tells the collector that was there).

Bound: O(1) a block. Blocks of requests without a tier have no owner.

Invariant: a tier's count is the number of blocks that carry its name.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tidegate.vllm_plugin.vllm_types import VllmBlock


class BlockOwners:
    """A metrics collector of vLLM's block pool."""

    def __init__(self, blocks: int, inner: Any = None) -> None:
        self._owner: list[str | None] = [None] * blocks
        self._inner = inner
        self.cached: Counter[str] = Counter()
        """Blocks by name of tier."""

    def keep(self, block: VllmBlock, tier: str) -> None:
        """Its last holder, of that tier, gives it up with its content."""
        self._drop(block)
        self._owner[block.block_id] = tier
        self.cached[tier] += 1

    def _drop(self, block: VllmBlock) -> None:
        tier = self._owner[block.block_id]
        if tier is not None:
            self._owner[block.block_id] = None
            self.cached[tier] -= 1

    def on_block_allocated(self, block: VllmBlock) -> None:
        if self._inner is not None:
            self._inner.on_block_allocated(block)

    def on_block_accessed(self, block: VllmBlock) -> None:
        self._drop(block)
        if self._inner is not None:
            self._inner.on_block_accessed(block)

    def on_block_evicted(self, block: VllmBlock) -> None:
        self._drop(block)
        if self._inner is not None:
            self._inner.on_block_evicted(block)

    def reset(self) -> None:
        """The prefix cache is emptied."""
        self._owner = [None] * len(self._owner)
        self.cached.clear()
        if self._inner is not None:
            self._inner.reset()
