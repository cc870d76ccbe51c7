"""One request of a workload: who sends what, when."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """The beginning of a prompt as blocks that equal ids make equal, for prefix caches."""

    block_ids: tuple[int, ...]
    block_tokens: int
    """Tokens of each block; the last is cut where the prompt ends."""
    source: str = ""
    """Whose ids they are: equal ids of two sources are different blocks."""


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request before it is sent; with the scenario's seed it determines the prompt."""

    tenant: str
    index: int
    """Position among the tenant's requests, from 0."""
    at_seconds: float | None
    """When, from the start of the run; unset: when a caller of the closed loop is free."""
    prompt_tokens: int
    output_tokens: int
    """0 for embeddings."""
    prefix: SharedPrefix | None = None
