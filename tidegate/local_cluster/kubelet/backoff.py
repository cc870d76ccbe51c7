"""How long a container that ended waits before it is started again."""

from dataclasses import dataclass


@dataclass(slots=True)
class RestartBackoff:
    """Kubernetes' rule: at once, then 10 s, doubling up to 5 min; afresh after running 10 min."""

    initial_seconds: float = 10.0
    max_seconds: float = 300.0
    reset_after_seconds: float = 600.0
    _next_seconds: float = 0.0

    def next_delay(self, ran_seconds: float) -> float:
        """The wait in seconds before the next start of a container that ran for `ran_seconds`."""
        if ran_seconds >= self.reset_after_seconds:
            self._next_seconds = 0.0
        delay = self._next_seconds
        doubled = min(self.max_seconds, delay * 2)
        self._next_seconds = doubled if delay else self.initial_seconds
        return delay
