"""Comments on a stream that has no event yet, so that nobody on its way takes it for dead.

Theory of operation. Load balancers end a request on which no byte has passed for a while (60 s is
usual), and one may wait longer for its turn, its back-off and its prompt. A comment is what
server-sent events have against that (WHATWG HTML, "Server-sent events", authoring notes): readers
skip it. The price is the status: the first comment takes the 200 and the head with it, so that

* none is sent before the request was admitted, nor before it has waited ``every_seconds``: what is
  refused sooner is refused by its status;
* what fails later is told as the last event of the stream (:func:`.relay.break_off`);
* nobody may take the request over: it stays in this pod's queue (:attr:`.Ticket.stays`).

A client that was sent comments alone has seen nothing: its request may be preempted like any other
whose stream has not begun. The last comment comes before the first event. One that does not take
the comments is sent no more of them, and is gone after ``stall_seconds``.

Source: BerriAI/litellm PR#37322, theopenco/llmgateway PR#1541 (case R6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from tidegate_sidecar.answers import ClientGone, StreamAnswer
from tidegate_sidecar.identity_keys import WAITED_HEADER
from tidegate_sidecar.ticket import Ticket, TicketState

COMMENT = b": keep-alive\n\n"


def waited_seconds(headers: Mapping[str, str]) -> float:
    """How long a request that a router signed has waited in other pods."""
    told_ms = headers.get(WAITED_HEADER, "")[:12]
    return int(told_ms) / 1000 if told_ms.isascii() and told_ms.isdecimal() else 0.0


class KeepAlive:
    """Of one admitted request; a context manager around all that may take long.

    ``new_stream`` makes what its client is sent, where nothing else has yet; the request has waited
    for ``waited_seconds`` in other pods.
    """

    __slots__ = (
        "_every_seconds",
        "_first_seconds",
        "_loop",
        "_new_stream",
        "_stall_seconds",
        "_ticket",
        "_timer",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ticket: Ticket,
        new_stream: Callable[[], StreamAnswer],
        every_seconds: float,
        stall_seconds: float,
        waited_seconds: float = 0.0,
    ) -> None:
        self._loop = loop
        self._ticket = ticket
        self._new_stream = new_stream
        self._every_seconds = every_seconds
        self._stall_seconds = stall_seconds
        self._first_seconds = max(every_seconds - waited_seconds, 0.0)
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> KeepAlive:
        self._timer = self._loop.call_later(self._first_seconds, self._comment)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _comment(self) -> None:
        ticket = self._ticket
        if ticket.state is TicketState.REFUSED:
            return  # its handler is about to say so, and may yet by its status
        stream = ticket.stream
        if stream is None:
            stream = ticket.stream = self._new_stream()
        elif stream.begun:
            return
        ticket.stays = True
        try:
            stream.write(COMMENT)
        except ClientGone:
            return  # its handler is being cancelled
        if stream.full:
            self._watch(stream)
        else:
            self._timer = self._loop.call_later(self._every_seconds, self._comment)

    def _watch(self, stream: StreamAnswer) -> None:
        """A client that did not keep up, until it does or is gone."""
        left = stream.unread_bytes
        self._timer = self._loop.call_later(self._stall_seconds, self._look_again, stream, left)

    def _look_again(self, stream: StreamAnswer, unread_bytes: int) -> None:
        if stream.begun:
            return  # who writes its events waits for it, too
        if not stream.full:
            self._comment()
        elif stream.unread_bytes < unread_bytes:
            self._watch(stream)
        else:
            stream.abort()
