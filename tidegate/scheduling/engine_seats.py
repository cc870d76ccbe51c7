"""How many sequences the engine runs at once, and how many more may stand ready for a seat.

``max_num_seqs`` where it is configured. Otherwise it is learned: when a request is overdue in the
engine's queue, the engine is taken to run as many as it can. One request more is let in as a probe
now and then; a probe that starts at once raises the number and may be followed by the next at once,
one that waits is the last for as many ends as keep probes within the 5% that may wait.

While all seats are taken, a freed one is filled without a gap only if a request stands ready in the
engine. As many may stand ready as will have their seat within the bound on waiting with 95%
certainty, ends being taken as a Poisson process of the measured rate: none where ends are rare (a
seat that idles for a step is little there), several where many end in each step.

Bound: if ends are such a process, at most 5% of those that stand ready wait longer than
``WAIT_BOUND_STEPS``; after a probe that waited, 40 end before the next. O(ready) a step, else O(1).
Source: design section 2 (the gate); many sequences that end apart from each other end as a Poisson
process (Khintchine 1960).
"""

from __future__ import annotations

from math import exp

WAIT_BOUND_STEPS = 2
_ENDS_OVER_STEPS = 32
_ENDS_BETWEEN_PROBES = 40


class EngineSeats:
    """Configured or learned seats, and what may be in flight for them; in sequences."""

    __slots__ = (
        "_configured",
        "_ended_in_step",
        "_ends_per_step",
        "_ends_until_probe",
        "_learned",
        "_probe",
        "_ready",
        "number",
        "places",
    )

    def __init__(self) -> None:
        self.number: int | None = None
        """Seats of the engine; None: unknown, no request has had to wait for one yet."""
        self.places: int | None = None
        """Seats, and what may stand ready for one; None: unknown (both are attributes, because
        every decision reads them several times)."""
        self._configured: int | None = None
        self._learned: int | None = None
        self._ready = 0
        self._ends_per_step = 0.0
        self._ended_in_step = 0
        self._probe: str | None = None
        self._ends_until_probe = 0

    def configure(self, seats: int | None) -> None:
        """The engine was started with so many; None: not known."""
        self._configured = seats
        self._restate()

    def has_room(self, in_flight: int) -> bool:
        """Whether one more may be in flight."""
        places = self.places
        if places is None or in_flight < places:
            return True
        may_probe = self._configured is None and not self._ends_until_probe
        return may_probe and self._probe is None and in_flight == places

    def dispatched(self, request_id: str, in_flight: int) -> None:
        """A request was let in when ``in_flight`` were."""
        places = self.places
        if self._configured is None and places is not None and in_flight >= places:
            self._probe = request_id

    def started(self, request_id: str, at_once: bool) -> None:
        """It has its seat."""
        if request_id != self._probe:
            return
        self._probe = None
        if not at_once:
            self._ends_until_probe = _ENDS_BETWEEN_PROBES
        elif self._learned is not None:
            self._learn(self._learned + 1)

    def ended(self, request_id: str, sequences: int) -> None:
        """It gave its seats back."""
        if request_id == self._probe:
            self._probe = None
        self._ended_in_step += sequences
        self._ends_until_probe = max(0, self._ends_until_probe - sequences)

    def overdue(self, request_id: str, running: int) -> None:
        """It waits in the engine though nothing but a seat is known to be short."""
        if not running:
            return
        self._ends_until_probe = _ENDS_BETWEEN_PROBES
        if self._learned is None:
            self._learn(running)
        elif request_id != self._probe:  # a late probe says that the number is right
            # Some seats may be free for just this moment, so one lower at a time.
            self._learn(max(running, self._learned - 1))

    def seen_running(self, running: int) -> None:
        """The engine says that it runs so many: it has at least so many seats."""
        if self._learned is not None:
            self._learn(max(self._learned, running))

    def step(self) -> None:
        """A step ended."""
        self._ends_per_step += (self._ended_in_step - self._ends_per_step) / _ENDS_OVER_STEPS
        self._ended_in_step = 0
        self._ready = ready_for_seats(self._ends_per_step)
        self._restate()

    def _learn(self, seats: int) -> None:
        self._learned = seats
        self._restate()

    def _restate(self) -> None:
        seats = self.number = self._learned if self._configured is None else self._configured
        self.places = None if seats is None else seats + self._ready


def ready_for_seats(ends_per_step: float) -> int:
    """The most that may stand ready: P(fewer ends within the bound) stays at most 5%."""
    mean = ends_per_step * WAIT_BOUND_STEPS
    if mean > 500:
        return int(ends_per_step)  # exp(-mean) underflows; far beyond it anyway
    ready, term, fewer = 0, exp(-mean), 0.0
    while fewer + term <= 0.05:
        fewer += term
        ready += 1
        term *= mean / ready
    return ready
