"""Step statistics (``contracts.StepStatistics``) as Unix datagrams, one a step.

Theory of operation: the socket never blocks and is not connected: each datagram is sent to the
path, so a receiver that comes later, restarts or is slow costs the engine nothing. What can't be
sent at once is dropped and counted.

Invariant: what is sent decodes as the contract (tests compare); nothing here raises but by mistake.
"""

from __future__ import annotations

import json
import socket


class StepReporter:
    """Tells one path about the steps of one engine."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self.sent = self.dropped = 0

    def close(self) -> None:
        """No more steps."""
        self._socket.close()

    def tell(self, note: dict[str, object]) -> None:
        """Send one step, or drop it."""
        note["dropped_total"] = self.dropped
        data = json.dumps(note, separators=(",", ":")).encode()
        try:
            self._socket.sendto(data, self._path)
        except OSError:  # nobody there, nobody reading, or too long
            self.dropped += 1
        else:
            self.sent += 1
