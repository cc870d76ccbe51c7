"""R6: when a stream that waits is sent a comment, on a clock of the test's."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from tidegate_sidecar.answers import ClientGone, StreamAnswer
from tidegate_sidecar.identity_keys import WAITED_HEADER
from tidegate_sidecar.keep_alive import COMMENT, KeepAlive, waited_seconds
from tidegate_sidecar.sse import is_comment
from tidegate_sidecar.ticket import Ticket, TicketState

EVERY_SECONDS = 15.0
STALL_SECONDS = 60.0


class _Clock:
    """What it asks of an event loop: one timer at a time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timer: tuple[float, object, tuple[object, ...]] | None = None

    def call_later(self, seconds: float, call: object, *args: object) -> SimpleNamespace:
        assert self.timer is None
        self.timer = (self.now + seconds, call, args)
        return SimpleNamespace(cancel=self._cancel)

    def _cancel(self) -> None:
        self.timer = None

    def pass_seconds(self, seconds: float) -> None:
        end = self.now + seconds
        while self.timer is not None and self.timer[0] <= end:
            (self.now, call, args), self.timer = self.timer, None
            assert callable(call)
            call(*args)
        self.now = end


class _Stream:
    """What its client is sent."""

    def __init__(self, clock: _Clock) -> None:
        self._clock = clock
        self.written_at: list[float] = []
        self.begun = self.full = self.aborted = self.gone = False
        self.unread_bytes = 0

    def write(self, data: bytes) -> bool:
        if self.gone:
            raise ClientGone
        assert data == COMMENT
        self.written_at.append(self._clock.now)
        return self.full

    def abort(self) -> None:
        self.aborted = True


class _Waiting:
    """A request that waits, kept alive."""

    def __init__(self, stream: bool = False, waited_seconds: float = 0.0) -> None:
        self.clock = _Clock()
        self.stream = _Stream(self.clock)
        self.ticket = SimpleNamespace(
            state=TicketState.QUEUED, stays=False, stream=self.stream if stream else None
        )
        loop: asyncio.AbstractEventLoop = self.clock  # type: ignore[assignment]
        ticket: Ticket = self.ticket  # type: ignore[assignment]
        made: StreamAnswer = self.stream  # type: ignore[assignment]
        self.keep_alive = KeepAlive(
            loop, ticket, lambda: made, EVERY_SECONDS, STALL_SECONDS, waited_seconds
        )


@pytest.mark.parametrize("stream", [False, True], ids=["no stream yet", "a stream without event"])
def test_a_comment_comes_every_so_many_seconds_and_none_after_the_end(stream: bool) -> None:
    waiting = _Waiting(stream)
    with waiting.keep_alive:
        waiting.clock.pass_seconds(14.9)
        assert not waiting.ticket.stays, "it may be handed back until then"
        waiting.clock.pass_seconds(40.0)
        assert waiting.ticket.stream is waiting.stream
        assert waiting.ticket.stays
    waiting.clock.pass_seconds(1000.0)
    assert waiting.stream.written_at == [15.0, 30.0, 45.0]


@pytest.mark.parametrize(
    ("told", "first"), [("", 15.0), ("x", 15.0), ("12000", 3.0), ("9" * 30, 0)]
)
def test_the_wait_in_other_pods_counts(told: str, first: float) -> None:
    waiting = _Waiting(waited_seconds=waited_seconds({WAITED_HEADER: told}))
    with waiting.keep_alive:
        waiting.clock.pass_seconds(first + EVERY_SECONDS)
    assert waiting.stream.written_at == [first, first + EVERY_SECONDS]


def test_none_comes_after_the_first_event() -> None:
    waiting = _Waiting()
    with waiting.keep_alive:
        waiting.clock.pass_seconds(20.0)
        waiting.stream.begun = True
        waiting.clock.pass_seconds(1000.0)
    assert waiting.stream.written_at == [15.0]
    assert waiting.clock.timer is None


def test_who_is_refused_is_told_so_and_nothing_else() -> None:
    """Its handler answers as soon as it runs, and a comment before that would take its status."""
    waiting = _Waiting()
    with waiting.keep_alive:
        waiting.ticket.state = TicketState.REFUSED
        waiting.clock.pass_seconds(1000.0)
    assert waiting.ticket.stream is None
    assert not waiting.ticket.stays


def test_a_client_that_is_gone_is_sent_nothing_more() -> None:
    waiting = _Waiting()
    with waiting.keep_alive:
        waiting.stream.gone = True
        waiting.clock.pass_seconds(1000.0)
    assert waiting.clock.timer is None


def test_a_client_that_takes_nothing_for_too_long_is_gone() -> None:
    waiting = _Waiting()
    stream = waiting.stream
    stream.full, stream.unread_bytes = True, 100_000
    with waiting.keep_alive:
        waiting.clock.pass_seconds(EVERY_SECONDS + STALL_SECONDS - 1)
        stream.unread_bytes = 90_000
        waiting.clock.pass_seconds(STALL_SECONDS)
        assert not stream.aborted
        waiting.clock.pass_seconds(STALL_SECONDS)
        assert stream.aborted
    assert stream.written_at == [15.0]


def test_a_client_that_catches_up_is_kept_alive_again() -> None:
    waiting = _Waiting()
    stream = waiting.stream
    stream.full, stream.unread_bytes = True, 100_000
    with waiting.keep_alive:
        waiting.clock.pass_seconds(20.0)
        stream.full, stream.unread_bytes = False, 0
        waiting.clock.pass_seconds(75.0)
    assert stream.written_at == [15.0, 75.0, 90.0]
    assert not stream.aborted


def test_who_writes_the_events_waits_for_the_client() -> None:
    waiting = _Waiting()
    stream = waiting.stream
    stream.full, stream.unread_bytes = True, 100_000
    with waiting.keep_alive:
        waiting.clock.pass_seconds(20.0)
        stream.begun = True
        waiting.clock.pass_seconds(1000.0)
    assert not stream.aborted


@pytest.mark.parametrize(
    ("data", "comment"),
    [
        (COMMENT, True),
        (b":\r\n\r\n: two\r\n\r\n", True),
        (b": one\rdata: x\r\r", False),
        (b": one\n\ndata: x\n\n", False),
        (b"data: :\n\n", False),
        (b"\x1f\x8b", False),
        (b"", False),
    ],
)
def test_what_a_client_sees_nothing_of(data: bytes, comment: bool) -> None:
    assert is_comment(data) is comment
