"""Conversations and agents: sessions of turns, each prompt the last one and something more.

Sessions begin as a Poisson process; within a session a turn is sent ``think`` seconds after the
answer before it. A turn's prompt is the prompt before it and ``turn_tokens`` new ones (the answer
as the client renders it, and the question): an engine finds the old part in its prefix cache, if
it is still there, and must compute the new one. That the answer's own blocks are not found again is
the careful reading: clients strip reasoning and re-render answers.

To begin in a steady state there are sessions under way at time 0, as many as Little's law says, at
turns drawn evenly.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import gcd
from random import Random

from tidegate.workload.clients.client import RETRY_SECONDS, Draw
from tidegate.workload.requests import PlannedRequest, SharedPrefix

EXPECTED_SECONDS_PER_OUTPUT_TOKEN = 0.04
"""For the number of sessions under way at time 0 only."""


@dataclass(slots=True)
class _Session:
    number: int
    tenant: str
    random: Random
    turn: int = 1


@dataclass(slots=True)
class SessionClient:
    """Sessions of one tier."""

    name: str
    tier: str
    tenants: Sequence[str]
    requests_per_second: float
    turns: int
    first_tokens: int
    """Of the prompt's beginning (a system prompt); turn ``n`` has ``n x turn_tokens`` more."""
    turn_tokens: int
    output: Draw
    mean_output_tokens: int
    think_seconds: float
    """Mean; exponentially distributed."""
    seed: int
    kind: str = "chat"
    _open: dict[int, _Session] = field(default_factory=dict)
    """By the index of its request under way."""
    _requests: int = 0

    def arrivals(self) -> Iterator[PlannedRequest]:
        random = Random(f"{self.seed}/{self.name}")
        rate = self.requests_per_second / self.turns
        seconds_per_turn = (
            self.think_seconds + self.mean_output_tokens * EXPECTED_SECONDS_PER_OUTPUT_TOKEN
        )
        under_way = round(rate * self.turns * seconds_per_turn)
        first: list[tuple[float, int, int]] = []
        for number in range(under_way):
            at = random.uniform(0.0, seconds_per_turn)
            heapq.heappush(first, (at, number, random.randint(1, self.turns)))
        now, number = 0.0, under_way
        while True:
            now += random.expovariate(rate)
            while first and first[0][0] <= now:
                at, old, turn = heapq.heappop(first)
                yield self._send(self._session(old, turn), at)
            yield self._send(self._session(number, 1), now)
            number += 1

    def follow_up(
        self, request: PlannedRequest, ended_at: float, completed: bool
    ) -> PlannedRequest | None:
        session = self._open.pop(request.index)
        if not completed:
            return self._send(session, ended_at + RETRY_SECONDS)
        if session.turn == self.turns:
            return None
        session.turn += 1
        think = session.random.expovariate(1 / self.think_seconds)
        return self._send(session, ended_at + think)

    def _session(self, number: int, turn: int) -> _Session:
        tenant = self.tenants[number % len(self.tenants)]
        return _Session(number, tenant, Random(f"{self.seed}/{self.name}/{number}"), turn)

    def _send(self, session: _Session, at: float) -> PlannedRequest:
        index = self._requests
        self._requests += 1
        self._open[index] = session
        block_tokens = gcd(self.first_tokens, self.turn_tokens)
        tokens = self.first_tokens + session.turn * self.turn_tokens
        first_block = session.number << 20  # as many for each session
        return PlannedRequest(
            tenant=session.tenant,
            index=index,
            at_seconds=at,
            prompt_tokens=tokens,
            output_tokens=self.output(session.random),
            prefix=SharedPrefix(
                tuple(range(first_block, first_block + tokens // block_tokens)),
                block_tokens,
                source=self.name,
            ),
        )
