"""The sidecar's scheduler and entrance before an engine with the plug-in, without HTTP.

What ``tidegate_sidecar.dispatcher`` does, in the loop of ``engine_worker``: submit, dispatch while
a tier's gate is open, tell steps, starts, progress and ends. What an engine did in a step comes
from its plug-in, by the socket that a sidecar reads; how long that took is the worker's own clock's
word.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from tidegate.scheduling.contracts import Policy, StepStatistics, decode, loads
from tidegate.scheduling.engine_time import RequestStep
from tidegate.scheduling.entrance import Entrance
from tidegate.scheduling.kv_room import held_ratio
from tidegate.scheduling.places import Places
from tidegate.scheduling.prefill_step import prefill_step
from tidegate.scheduling.request import Request, Usage
from tidegate.scheduling.scheduler import Scheduler
from tidegate.scheduling.step_time_fit import decode_work

MOST_DATAGRAM_BYTES = 1 << 20


class Asked(Protocol):
    """What is known of a request."""

    tier: str
    prompt_tokens: int
    output_tokens: int


def listening(path: str) -> socket.socket:
    """Where the plug-in of this process tells of its steps."""
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(path)
    receiver.setblocking(False)
    return receiver


def steps_told(receiver: socket.socket) -> list[bytes]:
    """Those since the last call; at every step, since a socket keeps few."""
    told = []
    with suppress(BlockingIOError):
        while True:
            told.append(receiver.recv(MOST_DATAGRAM_BYTES))
    return told


@dataclass(slots=True, eq=False)
class _Flight:
    """A request in the engine, which keeps its places itself."""

    request: Request
    output_tokens: int = 0
    first_token_at: float | None = None
    unfilled_tokens: int = 0
    preemptions: int = 0
    evictable: bool = False


class Front:
    """Of one engine, for one run; a tenant of each tier's name."""

    def __init__(self, policy: dict[str, Any]) -> None:
        read = decode(Policy, policy)
        self._scheduler = Scheduler(read, 0.0, timed=True)
        places: Places[_Flight] = Places()
        self._entrance = Entrance(self._scheduler, places, read, plugin=True)
        self._flights: dict[str, _Flight] = {}
        self._sent: dict[int, _Flight] = {}
        """By the number that the plug-in names it by."""

    def submit(self, name: str, asked: Asked, now: float) -> None:
        """It arrives."""
        request = Request(name, asked.tier, asked.prompt_tokens, asked.output_tokens)
        refused = self._scheduler.submit(request, now)
        assert refused is None, refused
        self._flights[name] = _Flight(request)
        self._entrance.gates.arrived(request, now)

    def dispatch(self, now: float) -> Iterator[tuple[str, int, int]]:
        """Those that go now: name, sequence number, output to expect."""
        while self._scheduler.has_work():
            request = self._entrance.next(now, _stays)
            if request is None:
                return
            assert request.sequence is not None
            flight = self._sent[request.sequence] = self._flights[request.id]
            self._entrance.dispatched(flight)
            yield request.id, request.sequence, request.expected_output_tokens

    def stepped(self, told: Sequence[bytes], seconds: float) -> None:
        """The engine ended a step, which took so long; before its tokens are told."""
        for datagram in told:
            step = loads(StepStatistics, datagram)
            if step.tiers:
                self._entrance.gates.kv_held(
                    {one.name: held_ratio(one.held_blocks, one.room_blocks) for one in step.tiers}
                )
            self._entrance.stepped(seconds, [*self._rows(step)])

    def _rows(self, step: StepStatistics) -> Iterator[RequestStep]:
        for number in step.decodes:
            flight = self._sent[number]
            context = flight.request.prompt_tokens + flight.output_tokens
            yield RequestStep(flight.request.id, decode_work(context))
        for one in step.prefills:
            name, cause = self._sent[one.sequence].request.id, one.caused_by or None
            again = min(one.recomputed_tokens, one.tokens)
            yield prefill_step(name, one.tokens, one.context_tokens, again, cause)

    def progressed(self, name: str, tokens: int, now: float) -> None:
        """Tokens of a request came."""
        flight = self._flights[name]
        if flight.first_token_at is None:
            flight.first_token_at = now
            self._entrance.gates.started(flight.request)
        flight.output_tokens += tokens
        self._scheduler.progress(name, tokens, now)

    def ended(self, name: str, prompt_tokens: int, output_tokens: int, now: float) -> None:
        """It has ended."""
        flight = self._flights.pop(name)
        assert flight.request.sequence is not None
        del self._sent[flight.request.sequence]
        self._entrance.left(flight, now)
        self._scheduler.finish(name, Usage(prompt_tokens, output_tokens), now)


def _stays(flight: _Flight, tier: str, now: float) -> bool:
    """Nobody is taken off an engine whose plug-in does so itself."""
    raise AssertionError(f"{flight.request.id} was to make way for one of {tier}")
