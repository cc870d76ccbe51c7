"""A request on its way through the engine model, and what a policy has to answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tidegate.simulator.service_gap import ServedRequest


@dataclass(slots=True, eq=False)
class Job:
    """One request; the engine knows its output length (the artifact's clients name it)."""

    number: int
    tenant: str
    prompt_tokens: int
    output_tokens: int
    arrival: float
    first_token: float | None = field(default=None, init=False)
    finished: float | None = field(default=None, init=False)
    last_step: int = field(default=0, init=False)
    """Number of the decode step that gives its last token."""
    preemptions: int = field(default=0, init=False)


class Policy(Protocol):
    """Decides the order of admission. The engine calls everything in order of time."""

    def arrive(self, job: Job, now: float) -> bool:
        """It wants to be served; False: refused."""

    def head(self, now: float) -> Job | None:
        """Which of the waiting to admit next; asking changes nothing."""

    def admit(self, job: Job, now: float) -> None:
        """The head of just now is prefilled next and waits no more."""

    def decode(self, running: Iterable[Job], now: float) -> None:
        """Each of these gets one more token."""

    def finish(self, ended: Sequence[Job], batch: Iterable[Job], now: float) -> None:
        """These got their last token; ``batch`` is all that were computed with them."""


def jobs_of(requests: Iterable[ServedRequest]) -> list[Job]:
    """The requests of a run, in order of arrival, to be served anew."""
    ordered = sorted(requests, key=lambda each: each.arrival)
    return [
        Job(number, one.tenant, one.prompt_tokens, one.output_tokens, one.arrival)
        for number, one in enumerate(ordered)
    ]


def reversed_in_time(requests: Sequence[ServedRequest]) -> list[ServedRequest]:
    """The same requests, the last first: a workload to which nothing was ever fitted."""
    last = max(one.arrival for one in requests)
    return [
        ServedRequest(
            one.tenant, one.prompt_tokens, one.output_tokens, last - one.arrival, None, None
        )
        for one in reversed(requests)
    ]
