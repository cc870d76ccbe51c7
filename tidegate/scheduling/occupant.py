"""A request in the engine, as a host of the core knows it."""

from __future__ import annotations

from typing import Protocol, TypeVar

from tidegate.scheduling.request import Request


class Occupant(Protocol):
    """From its dispatch until it leaves; hashed by identity."""

    @property
    def request(self) -> Request:
        """What was dispatched."""

    @property
    def output_tokens(self) -> int:
        """Seen of it since then."""

    @property
    def unfilled_tokens(self) -> int:
        """Of its prompt, not taken to be computed yet."""

    @property
    def first_token_at(self) -> float | None:
        """Unset: its prompt is being computed."""

    @property
    def preemptions(self) -> int:
        """How often it was taken off the engine."""

    @property
    def evictable(self) -> bool:
        """Whether it can be taken off the engine without its client's noticing."""


T = TypeVar("T", bound=Occupant)
