"""One request as it was measured. Times are seconds from the start of the run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SampleState(StrEnum):
    """How a sent request stands; all but IN_FLIGHT are final."""

    IN_FLIGHT = "in_flight"
    OK = "ok"
    REFUSED = "refused"
    FAILED = "failed"
    UNFINISHED = "unfinished"


@dataclass(slots=True)
class Sample:
    """A request that was sent or, while ``sent`` is unset, waits for a free connection."""

    tenant: str
    index: int
    scheduled: float | None
    """The intended time of sending; unset in a closed loop."""
    prompt_tokens: int
    """Planned; the engine's own count once it has reported usage."""
    stream: bool
    sent: float | None = None
    first_token: float | None = None
    ended: float | None = None
    output_tokens: int = 0
    state: SampleState = SampleState.IN_FLIGHT
    reason: str = ""
    """Of a refused or failed one."""
    retry_after_seconds: float | None = None
    """What the server asked of a refused one."""

    @property
    def began(self) -> float:
        """Where its latency starts: the intended time, in a closed loop the sending."""
        if self.scheduled is not None:
            return self.scheduled
        return self.sent if self.sent is not None else 0.0

    def end(self, state: SampleState, now: float, reason: str = "") -> None:
        """Settle it; a second settlement would be counted twice and is an error."""
        if self.state is not SampleState.IN_FLIGHT:
            raise RuntimeError(f"a request ended twice: {self.state}, then {state}")
        self.state, self.ended, self.reason = state, now, reason
