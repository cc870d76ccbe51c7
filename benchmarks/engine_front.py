"""The sidecar's scheduler and gates before an engine with the plug-in, without HTTP.

What ``tidegate_sidecar.dispatcher`` does, in the loop of ``engine_worker``: submit, dispatch while
a tier's gate is open, tell steps, starts, progress and ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from tidegate.scheduling.contracts import Policy, decode
from tidegate.scheduling.gates import Gates
from tidegate.scheduling.request import Request, Usage
from tidegate.scheduling.scheduler import Scheduler


class Asked(Protocol):
    """What is known of a request."""

    tier: str
    prompt_tokens: int
    output_tokens: int


class Front:
    """Of one engine, for one run; a tenant of each tier's name."""

    def __init__(self, policy: dict[str, Any]) -> None:
        read = decode(Policy, policy)
        self._scheduler = Scheduler(read, 0.0)
        self._gates = Gates(read, by_tier=True)
        self._requests: dict[str, Request] = {}
        self._started: set[str] = set()

    def submit(self, name: str, asked: Asked, now: float) -> None:
        """It arrives."""
        request = Request(name, asked.tier, asked.prompt_tokens, asked.output_tokens)
        refused = self._scheduler.submit(request, now)
        assert refused is None, refused
        self._requests[name] = request
        self._gates.arrived(request, now)

    def dispatch(self, now: float) -> Iterator[tuple[str, int, int]]:
        """Those that go now: name, sequence number, output to expect."""
        while self._scheduler.has_work():
            closed = self._gates.closed(now)
            request = None if closed is None else self._scheduler.next(now, closed)
            if request is None:
                return
            self._gates.dispatched(request)
            assert request.sequence is not None
            yield request.id, request.sequence, request.expected_output_tokens

    def stepped(self, seconds: float, now: float) -> None:
        """The engine ended a step."""
        queued = {tier.name: tier.queued for tier in self._scheduler.tier_snapshots()}
        self._gates.step(queued)

    def progressed(self, name: str, tokens: int, now: float) -> None:
        """Tokens of a request came."""
        if name not in self._started:
            self._started.add(name)
            self._gates.started(self._requests[name])
        self._scheduler.progress(name, tokens, now)

    def ended(self, name: str, prompt_tokens: int, output_tokens: int, now: float) -> None:
        """It has ended."""
        self._gates.ended(self._requests.pop(name), now)
        self._scheduler.finish(name, Usage(prompt_tokens, output_tokens), now)
