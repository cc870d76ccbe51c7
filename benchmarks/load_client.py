"""A load client that costs little: raw HTTP/1.1 over kept connections, each sending when answered,
or at given times, answered or not.

Every answer is checked after it has arrived: status 200, JSON with the expected content, or a
stream of the expected number of events and `[DONE]`. A wrong answer is counted with its text and
never timed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import orjson

_MAX_ERRORS_KEPT = 3


@dataclass(slots=True)
class Outcome:
    """What one cell of the benchmark measured."""

    seconds: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)
    wrong: int = 0
    errors: list[str] = field(default_factory=list)
    metered: float = 0.0
    longest_gap_ms: float = 0.0
    """Between two reads of one answer."""

    @property
    def per_second(self) -> float:
        return len(self.latencies_ms) / self.seconds

    def percentile_ms(self, percent: float) -> float:
        """Nearest rank. ValueError when nothing was answered."""
        if not self.latencies_ms:
            raise ValueError("nothing was answered")
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


class _Pacer:
    """Sends on a connection that is free or, where none is, on the next that becomes so."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._free: list[_Connection] = []
        self._due: deque[float] = deque()

    async def run(self) -> None:
        """Until it is cancelled."""
        now = asyncio.get_running_loop().time
        started = now()
        for number in count():
            await asyncio.sleep(started + number / self._per_second - now())
            self.send()

    def send(self) -> None:
        """A request is due now."""
        now = time.perf_counter()
        if self._free:
            self._free.pop().send(now)
        else:
            self._due.append(now)

    def freed(self, connection: _Connection) -> None:
        """It carries no request."""
        if self._due:
            connection.send(self._due.popleft())
        else:
            self._free.append(connection)


class _Connection(asyncio.Protocol):
    """One connection with one request on it at a time; without a pacer it sends when answered."""

    def __init__(
        self,
        request: bytes,
        check: Callable[[bytes], str],
        outcome: Outcome,
        pacer: _Pacer | None = None,
    ) -> None:
        self._pacer = pacer
        self._request = request
        self._check = check
        self._outcome = outcome
        self._transport: asyncio.Transport | None = None
        self._held: list[bytes] = []
        self._tail = b""
        self._body_at = -1
        self._length = -1
        self._got = 0
        self._due_at = 0.0
        self._read_at: float | None = None
        self.counting = False
        self.stopping = False
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._free()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.stopping:
            self._wrong(f"the connection was closed ({error or 'by the server'})")
        if not self.closed.done():
            self.closed.set_result(None)

    def stop(self) -> None:
        self.stopping = True
        if self._transport is not None:
            self._transport.abort()

    def _free(self) -> None:
        if self._pacer is None:
            self.send(time.perf_counter())
        else:
            self._pacer.freed(self)

    def send(self, due_at: float) -> None:
        """The next request, whose latency counts from then."""
        assert self._transport is not None
        self._held, self._tail = [], b""
        self._body_at, self._length, self._got = -1, -1, 0
        self._due_at, self._read_at = due_at, None
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self.counting and self._read_at is not None:
            gap_ms = (now - self._read_at) * 1000
            self._outcome.longest_gap_ms = max(self._outcome.longest_gap_ms, gap_ms)
        self._read_at = now
        self._held.append(data)
        self._got += len(data)
        self._tail = data[-5:] if len(data) >= 5 else (self._tail + data)[-5:]
        if self._body_at < 0:
            joined = b"".join(self._held)
            end = joined.find(b"\r\n\r\n")
            if end < 0:
                return
            self._held = [joined]
            self._body_at = end + 4
            head = joined[:end].lower()
            at = head.find(b"\r\ncontent-length:")
            if at >= 0:
                self._length = int(head[at + 17 :].partition(b"\r\n")[0])
        if self._length >= 0:
            if self._got >= self._body_at + self._length:
                self._answered()
        elif self._ends_chunked():
            self._answered()

    def _ends_chunked(self) -> bool:
        # Data of a chunk never ends in these five bytes: our events have no carriage returns.
        return self._tail == b"0\r\n\r\n" and self._got > self._body_at

    def _answered(self) -> None:
        took_ms = (time.perf_counter() - self._due_at) * 1000
        answer = b"".join(self._held)
        head, body = answer[: self._body_at], answer[self._body_at :]
        if not head.startswith(b"HTTP/1.1 200"):
            wrong = f"{head.splitlines()[0][:40]!r} {body[:200]!r}"
        else:
            wrong = self._check(body if self._length >= 0 else dechunk(body))
        if wrong:
            self._wrong(wrong)
            self.stop()
            return
        if self.counting:
            self._outcome.latencies_ms.append(took_ms)
        if not self.stopping:
            self._free()

    def _wrong(self, text: str) -> None:
        self._outcome.wrong += 1
        if len(self._outcome.errors) < _MAX_ERRORS_KEPT:
            self._outcome.errors.append(text)


def dechunk(body: bytes) -> bytes:
    """The content of a chunked body that is all there."""
    parts: list[bytes] = []
    at = 0
    while True:
        line_end = body.index(b"\r\n", at)
        size = int(body[at:line_end].partition(b";")[0], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(body[line_end + 2 : line_end + 2 + size])
        at = line_end + 4 + size


def check_whole(words: int) -> Callable[[bytes], str]:
    """A chat completion whose content has so many words; what is wrong, or ''."""

    def check(body: bytes) -> str:
        try:
            content = orjson.loads(body)["choices"][0]["message"]["content"]
        except (orjson.JSONDecodeError, KeyError, IndexError, TypeError):
            return f"not a chat completion: {body[:200]!r}"
        got = content.count("word")
        return "" if got == words else f"{got} words, not {words}"

    return check


def check_stream(words: int) -> Callable[[bytes], str]:
    """A stream of so many words, one an event, and `[DONE]`; the role may come first."""

    def check(body: bytes) -> str:
        if not body.endswith(b"data: [DONE]\n\n"):
            return f"the stream does not end with [DONE]: {body[-100:]!r}"
        got = body.count(b'" word"')
        events = body.count(b"data: ") - 1
        if got != words or not words <= events <= words + 2:
            return f"{got} words in {events} events, not {words}"
        return ""

    return check


async def load(
    port: int,
    body: dict[str, object],
    key: str,
    check: Callable[[bytes], str],
    *,
    connections: int,
    warm_up_seconds: float,
    seconds: float,
    meter: Callable[[], float] = lambda: 0.0,
    per_second: float | None = None,
) -> Outcome:
    """Chat completions of `body` to a port of loopback; only answers after the warm-up count.

    `meter` is read at both ends of the measured time; the outcome has the difference. `per_second`:
    so many are sent, answered or not, and latency counts from when one was due; unset: each
    connection sends when it was answered.
    """
    payload = orjson.dumps(body)
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n"
    ).encode() + payload
    outcome = Outcome()
    pacer = None if per_second is None else _Pacer(per_second)
    loop = asyncio.get_running_loop()
    open_connections: list[_Connection] = []
    for _ in range(connections):
        _, protocol = await loop.create_connection(
            lambda: _Connection(request, check, outcome, pacer), "127.0.0.1", port
        )
        open_connections.append(protocol)
    sending = None if pacer is None else asyncio.create_task(pacer.run())
    await asyncio.sleep(warm_up_seconds)
    for connection in open_connections:
        connection.counting = True
    started, metered = time.perf_counter(), meter()
    await asyncio.sleep(seconds)
    outcome.seconds = time.perf_counter() - started
    outcome.metered = meter() - metered
    if sending is not None:
        sending.cancel()
    for connection in open_connections:
        connection.counting = False
    for connection in open_connections:
        connection.stop()
    await asyncio.gather(*(connection.closed for connection in open_connections))
    return outcome
