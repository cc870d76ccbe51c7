"""Step statistics (``contracts.StepStatistics``) as Unix datagrams, one a step.

Theory of operation: the socket never blocks and is not connected: each datagram is sent to the
path, so a receiver that comes later, restarts or is slow costs the engine nothing. A kernel keeps
few datagrams for one who reads late (net.unix.max_dgram_qlen, 10), so what does not fit is kept
here and sent with the next step, up to ``MOST_KEPT``; beyond that, and where nobody listens, it is
dropped and counted.

Invariant: what is sent decodes as the contract (tests compare), in order; nothing here raises but
by mistake.
"""

from __future__ import annotations

import json
import socket
from collections import deque

MOST_KEPT = 256


class StepReporter:
    """Tells one path about the steps of one engine."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._kept: deque[bytes] = deque()
        self.sent = self.dropped = 0

    @property
    def kept(self) -> int:
        """Steps that wait for the next one."""
        return len(self._kept)

    def close(self) -> None:
        """No more steps."""
        self._socket.close()

    def tell(self, note: dict[str, object]) -> None:
        """Send one step, with those kept before it."""
        note["dropped_total"] = self.dropped
        self._kept.append(json.dumps(note, separators=(",", ":")).encode())
        try:
            while self._kept:
                self._socket.sendto(self._kept[0], self._path)
                self._kept.popleft()
                self.sent += 1
        except BlockingIOError:  # whoever listens is busy
            if len(self._kept) > MOST_KEPT:
                self._kept.popleft()
                self.dropped += 1
        except OSError:  # nobody there, or too long
            self.dropped += len(self._kept)
            self._kept.clear()
