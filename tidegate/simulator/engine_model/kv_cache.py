"""KV blocks of one engine: a single pool, prefix cache by block hash, LRU.

As in vLLM's ``BlockPool``: there are no owners and no quotas (a block's ``cache_group`` is a label
that a plug-in counts by and the pool ignores). A block is blank (never filled or
un-hashed when freed), held (by one request, or by several that hit the same prefix), or cached
(free, but its content can be hit until it is reused, least recently freed first). A request's
blocks are freed in reverse, so that the tail of a sequence is lost before its head.

Invariant: ``blank + cached + held == total_blocks``, where a held block counts once however many
requests share it (``check()``).
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable


class Block:
    """One KV block; ``holders`` counts the requests that use it now."""

    __slots__ = ("cache_group", "content_hash", "holders")

    def __init__(self) -> None:
        self.content_hash: int | None = None
        self.cache_group = 0
        self.holders = 0


class KvCache:
    """The block pool. Sizes are in blocks; ``enable_prefix_caching`` False: nothing is hashed."""

    def __init__(self, total_blocks: int, *, enable_prefix_caching: bool = True) -> None:
        if total_blocks < 1:
            raise ValueError("total_blocks must be at least 1")
        self.total_blocks = total_blocks
        self.enable_prefix_caching = enable_prefix_caching
        self._blank = total_blocks
        self._by_hash: dict[int, Block] = {}
        self._twins: dict[int, list[Block]] = {}
        self._reusable: OrderedDict[Block, None] = OrderedDict()
        self.cached_by_group: defaultdict[int, int] = defaultdict(int)
        """Of the cached blocks, how many bear each label."""

    @property
    def free_blocks(self) -> int:
        """Blocks that can be allocated now, blank or cached."""
        return self._blank + len(self._reusable)

    @property
    def cached_blocks(self) -> int:
        """Free blocks whose content can still be hit."""
        return len(self._reusable)

    @property
    def held_blocks(self) -> int:
        """Blocks that running requests hold."""
        return self.total_blocks - self.free_blocks

    def lookup(self, block_hash: Callable[[int], int | None], max_blocks: int) -> list[Block]:
        """The longest cached prefix, at most ``max_blocks`` blocks; takes nothing."""
        hits: list[Block] = []
        if not self.enable_prefix_caching:
            return hits
        for index in range(max_blocks):
            content_hash = block_hash(index)
            block = None if content_hash is None else self._by_hash.get(content_hash)
            if block is None:
                break
            hits.append(block)
        return hits

    def fits(self, hits: Iterable[Block], new_blocks: int) -> bool:
        """Whether ``hits`` can be taken and ``new_blocks`` allocated besides."""
        revived = sum(1 for block in hits if block.holders == 0)
        return new_blocks + revived <= self.free_blocks

    def take(self, hits: Iterable[Block]) -> None:
        """Hold blocks found by ``lookup``."""
        for block in hits:
            if block.holders == 0:
                del self._reusable[block]
                self.cached_by_group[block.cache_group] -= 1
            block.holders += 1

    def allocate(self, count: int) -> list[Block] | None:
        """``count`` blocks, blank ones first, then the least recently freed; None: too few."""
        if count > self.free_blocks:
            return None
        blocks: list[Block] = []
        for _ in range(count):
            if self._blank:
                self._blank -= 1
                block = Block()
            else:
                block, _ = self._reusable.popitem(last=False)
                self.cached_by_group[block.cache_group] -= 1
                self._unhash(block)
            block.holders = 1
            blocks.append(block)
        return blocks

    def publish(self, block: Block, content_hash: int | None, cache_group: int = 0) -> None:
        """Make a block that has become full findable; of several alike the oldest is found."""
        if not self.enable_prefix_caching or content_hash is None or block.content_hash is not None:
            return
        block.content_hash = content_hash
        block.cache_group = cache_group
        if self._by_hash.setdefault(content_hash, block) is not block:
            self._twins.setdefault(content_hash, []).append(block)

    def _unhash(self, block: Block) -> None:
        content_hash = block.content_hash
        assert content_hash is not None
        block.content_hash = None
        twins = self._twins.get(content_hash)
        if twins is None:
            del self._by_hash[content_hash]
            return
        if self._by_hash[content_hash] is block:
            self._by_hash[content_hash] = twins.pop(0)
        else:
            twins.remove(block)
        if not twins:
            del self._twins[content_hash]

    def forget(self, blocks: Iterable[Block]) -> None:
        """Un-hash blocks about to be released, but those that others hold too."""
        for block in blocks:
            if block.holders == 1 and block.content_hash is not None:
                self._unhash(block)

    def release(self, blocks: list[Block]) -> None:
        """Give back a request's blocks, in sequence order; the list is emptied."""
        while blocks:
            block = blocks.pop()
            block.holders -= 1
            if block.holders:
                continue
            if block.content_hash is None:
                self._blank += 1
            else:
                self._reusable[block] = None
                self.cached_by_group[block.cache_group] += 1

    def check(self, held: Iterable[Block]) -> None:
        """Raise AssertionError unless the blocks in ``held`` (with repeats) and ours add up."""
        holders: dict[int, int] = {}
        blocks: dict[int, Block] = {}
        for block in held:
            holders[id(block)] = holders.get(id(block), 0) + 1
            blocks[id(block)] = block
        assert all(blocks[key].holders == count for key, count in holders.items())
        assert self._blank >= 0
        assert self._blank + len(self._reusable) + len(blocks) == self.total_blocks
        assert all(block.holders == 0 for block in self._reusable)
        assert sum(self.cached_by_group.values()) == len(self._reusable)
        for block in self._reusable:
            assert block.content_hash is not None
            found = self._by_hash[block.content_hash]
            assert found is block or block in self._twins[block.content_hash]
