"""One request's way through the pod stage, as its handler sees it.

The handler opens a ticket by submitting, waits for its turn, tells what it sees of the answer and
closes it, exactly once, in every case (``with ticket:``). What that means for queue, gate and
accounts is the business of the ticket's host, the dispatcher.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from types import TracebackType
from typing import Protocol

from tidegate.scheduling.contracts import Endpoint
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.request import Request, Usage
from tidegate_sidecar.answers import ClientGone, StreamAnswer
from tidegate_sidecar.engine_connection import Cut
from tidegate_sidecar.errors import ApiError
from tidegate_sidecar.trace_context import TraceContext


class TicketHost(Protocol):
    """What a ticket tells of itself."""

    loop: asyncio.AbstractEventLoop

    def progressed(self, ticket: Ticket, tokens: int) -> None:
        """The engine's answer brought so many tokens; the first call is the sign of its start."""

    def limit_headers(
        self, tenant: str, endpoint: Endpoint | None, model: str | None
    ) -> dict[str, str]:
        """What its rate limits leave its tenant."""

    def requeue(self, ticket: Ticket) -> None:
        """The engine did no work on it."""

    def close_ticket(self, ticket: Ticket) -> None:
        """It has ended; exactly once."""


class TicketState(Enum):
    QUEUED = "queued"
    DISPATCHED = "dispatched"
    BACKING_OFF = "backing off"
    REFUSED = "refused"
    ENDED = "ended"


WAITING = frozenset({TicketState.QUEUED, TicketState.BACKING_OFF})
"""For a turn, or for the end of a back-off and then a turn."""


class Ticket:
    """One request on its way; a context manager that ends it."""

    __slots__ = (
        "_host",
        "_telling",
        "_turn",
        "back_off",
        "caused_by",
        "cut",
        "empty_engine_readings",
        "first_token_at",
        "first_token_seconds",
        "key_sha256",
        "last_token_at",
        "opaque",
        "outcome",
        "output_tokens",
        "preemptions",
        "refusal",
        "request",
        "role_event",
        "sent",
        "state",
        "stays",
        "step",
        "step_tokens",
        "stream",
        "told_tokens",
        "trace",
        "unfilled_tokens",
        "usage",
    )

    def __init__(self, host: TicketHost, request: Request, key_sha256: str) -> None:
        self._host = host
        self.state = TicketState.QUEUED
        self._turn: asyncio.Future[None] | None = None
        self._telling = False
        """Its progress is being told, before its client is sent what brought it."""
        self.refusal: ApiError | None = None
        self.request = request
        self.key_sha256 = key_sha256
        self.stays = False
        """It is not handed back from the queue."""
        self.sent = False
        """The engine may have begun to work on it."""
        self.opaque = False
        """Its answer is not streamed."""
        self.empty_engine_readings = 0
        self.role_event = False
        """Its stream begins with an event without a token."""
        self.step = -1
        """In which it brought tokens last; kept, as the next two, by :mod:`.token_gaps`."""
        self.step_tokens = 0
        """How many it brought in that."""
        self.unfilled_tokens = 0
        """Of its prompt, not taken to be computed yet."""
        self.stream: StreamAnswer | None = None
        """What its client is sent, where that is a stream."""
        self.cut: Cut | None = None
        """Ends its exchange with the engine; unset: it has none."""
        self.preemptions = 0
        """How often it was taken off the engine."""
        self.caused_by: str | None = None
        """The tier for which it was last."""
        self.back_off: asyncio.TimerHandle | None = None
        """Ends its wait before it is queued again."""
        self.first_token_seconds: float | None = None
        """From its arrival to its first token; of one that was preempted after it, the first."""
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.output_tokens = 0
        self.told_tokens = 0
        """Of them, what the scheduler was told."""
        self.outcome = Outcome.CLIENT_CLOSED
        """Set by whoever serves it, before it is closed."""
        self.usage: Usage | None = None
        self.trace: TraceContext | None = None

    async def turn(self) -> None:
        """Wait until it may be sent; :class:`ApiError` where it lost its place."""
        if self.state in WAITING:
            self._turn = self._host.loop.create_future()
            try:
                await self._turn
            finally:
                self._turn = None
        if self.refusal is not None:
            raise self.refusal

    def events_seen(self, events: int, before: int) -> int:
        """Events of its stream came, ``events`` in all, ``before`` of them told already.

        One event is about one token. The first is the sign that it started; in a chat it holds
        the role and no token.
        """
        tokens = events - before - (self.role_event and before == 0)
        self._telling = True
        self._host.progressed(self, tokens)
        self._telling = False
        return events

    def limit_headers(self) -> dict[str, str]:
        """Of its answer: what its tenant has left."""
        request = self.request
        return self._host.limit_headers(request.tenant, request.endpoint, request.model)

    @property
    def evictable(self) -> bool:
        """Whether it can be taken off the engine without its client's noticing.

        While its own progress is told, which may be what lets another in, its client is about to.
        One that was sent comments alone (:mod:`.keep_alive`) has noticed nothing.
        """
        if self.cut is None:
            return False
        return self.stream is None or not (self.stream.begun or self._telling)

    def may_be_cut(self, cut: Cut) -> None:
        """Its exchange with the engine has begun."""
        self.cut = cut

    def forget_progress(self) -> None:
        """It begins anew: nothing of what the engine did for it is left."""
        self.sent = self.opaque = False
        self.cut = self.first_token_at = self.last_token_at = None
        self.output_tokens = self.told_tokens = self.step_tokens = self.unfilled_tokens = 0
        self.step = -1

    def requeue(self) -> None:
        """The engine did no work for it: back to its old place."""
        self.sent = False
        self._host.requeue(self)

    def complete(self, usage: Usage | None) -> None:
        """The answer was served to its end."""
        self.outcome = Outcome.COMPLETED
        self.usage = usage

    def __enter__(self) -> Ticket:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, ApiError):
            self.outcome = error.outcome
        elif isinstance(error, Exception) and not isinstance(error, ClientGone | ConnectionError):
            self.outcome = Outcome.ENGINE_FAILED  # a defect of ours, answered with 500
        self._host.close_ticket(self)

    def let_go(self) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)
