"""A request as the scheduler sees it: who asks, how much, how urgent. No content."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Request:
    """One request of one tenant, from submit to its one outcome.

    The first group of fields is set by the host before ``Scheduler.submit`` and never changes; the
    second belongs to the scheduler.
    """

    id: str
    tenant: str
    """namespace/name of the Tenant, a row of the policy in force."""
    prompt_tokens: int
    """Estimated, over all of its prompts."""
    max_output_tokens: int
    """Most output tokens it may produce, over all of its sequences."""
    body_bytes: int = 0
    """Bytes held while it waits, counted against the tenant's queue."""
    sequences: int = 1
    """Engine sequences it becomes (prompts times n)."""
    priority: int = 0
    """Among the requests of its own tenant, higher first."""
    deadline: float | None = None
    """Latest time of its first token, on the scheduler's clock; unset: none."""

    arrival: float = field(default=0.0, init=False)
    sequence: int | None = field(default=None, init=False)
    """Rising number in order of dispatch; unset while it waits."""
    dispatched: float | None = field(default=None, init=False)
    output_tokens: int = field(default=0, init=False)
    """Charged so far while streaming."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What the engine reports of an ended request, in tokens, over all of its sequences."""

    prompt_tokens: int
    output_tokens: int
