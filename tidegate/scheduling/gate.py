"""The gate between our queue and the engine's own: when one more request may be dispatched.

Theory of operation: what waits in the engine's queue waits in the engine's order, so the gate keeps
that queue short; what the engine could have started and had not got is a GPU that idles, so never
too short. All counts are engine *sequences*. The gate is open while all of these hold (and always
when nothing is in flight, so that no wrong belief about the engine can shut it for good):

* ``not_started < window``. Not started is what was dispatched and has shown neither a first token
  nor prefill progress, known here at once; the window follows what starts (``start_window``).
* Less than two steps' worth of prefill tokens is outstanding (``engine_prefills``).
* A seat is free or about to be (``engine_seats``).
* The KV cache has room for one more prompt (``engine_kv``).

A step is what the host sees of one: the gap between two tokens of a stream, or the plug-in's step
statistics. Nothing here runs on a timer: places are freed by ends and starts alone. What the engine
does not tell is never taken for zero: without seats or KV the window grows only on evidence that
the last request was started at once.

Bound: a dispatch leaves less than the window and one request not started; O(those) to ask or step.
Source: design section 2 (the gate); the window is that of congestion control (``start_window``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.scheduling.contracts import EngineLimits
from tidegate.scheduling.engine_kv import EngineKv
from tidegate.scheduling.engine_prefills import EnginePrefills
from tidegate.scheduling.engine_seats import WAIT_BOUND_STEPS, EngineSeats
from tidegate.scheduling.start_window import StartWindow


@dataclass(slots=True, eq=False)
class _Flight:
    sequences: int
    prompt_tokens: int
    dispatched_step: int
    own_steps: int
    """Steps that its own prefill takes."""
    expected_steps: int
    """Steps that its prefill takes with those before it; longer, and it lacks a seat or KV."""
    started_step: int | None = None


class Gate:
    """For pools that generate."""

    def __init__(self, limits: EngineLimits) -> None:
        self._seats = EngineSeats()
        self._kv = EngineKv()
        self._prefills = EnginePrefills()
        self.apply_limits(limits)
        self._window = StartWindow()
        self._flights: dict[str, _Flight] = {}
        self._unstarted: dict[str, _Flight] = {}
        """Oldest first."""
        self._not_started = 0
        self._running = 0
        self._step = 0
        self._last_started_at_once = False
        self._engine_waiting: int | None = None
        """As its last metrics say."""

    @property
    def window(self) -> int:
        """Sequences that may be dispatched and not started."""
        return self._window.size(self._seats.places)

    @property
    def not_started(self) -> int:
        """Sequences dispatched without first token or prefill progress."""
        return self._not_started

    @property
    def in_flight(self) -> int:
        """Sequences dispatched and not ended."""
        return self._not_started + self._running

    @property
    def seats(self) -> int | None:
        """Sequences that the engine runs at once; None: unknown."""
        return self._seats.number

    def apply_limits(
        self,
        limits: EngineLimits,
        prefill_budget_tokens: int | None = None,
        chunk_tokens: int | None = None,
    ) -> None:
        """Hot reload of what is configured of the engine.

        ``prefill_budget_tokens``: at most two of it are outstanding while anything decodes;
        ``chunk_tokens``: most of one prompt in one step.
        """
        self._prefills.apply_limits(limits, prefill_budget_tokens, chunk_tokens)
        self._seats.configure(limits.max_num_seqs)

    def is_open(self) -> bool:
        """Whether one more request may be dispatched now."""
        return not self._flights or (self._line_is_short() and self._has_place())

    def lacks_place(self, without: Sequence[str] = ()) -> bool:
        """Whether it is closed for want of a seat or of KV alone, such as a victim would give, and
        stays so when the requests ``without`` make way."""
        if len(without) == len(self._flights) or not self._line_is_short():
            return False
        gone, kv = [self._flights[one] for one in without], self._kv
        tokens = [kv.held_by(one.prompt_tokens, one.sequences, one.started_step) for one in gone]
        return not self._has_place(sum([one.sequences for one in gone]), sum(tokens))

    def _line_is_short(self) -> bool:
        return self._not_started < self.window and self._prefills.has_room(self._running)

    def _has_place(self, fewer: int = 0, fewer_tokens: int = 0) -> bool:
        return self._seats.has_room(self.in_flight - fewer) and self._kv.has_room(fewer_tokens)

    def dispatched(self, request_id: str, sequences: int, prompt_tokens: int) -> None:
        """A request goes to the engine."""
        own, all_steps = self._prefills.steps_of(sequences, prompt_tokens, self._running)
        flight = _Flight(sequences, prompt_tokens, self._step, own, all_steps + 1)
        self._seats.dispatched(request_id, self.in_flight)
        self._kv.dispatched(prompt_tokens)
        self._flights[request_id] = self._unstarted[request_id] = flight
        self._not_started += sequences
        prefills = self._prefills
        prefills.dispatched(request_id, sequences, prompt_tokens)
        if not self._step:
            self._window.begin(2 * prefills.budget_tokens // prefills.mean_tokens)

    def started(self, request_id: str) -> None:
        """Its first token or prefill progress was seen; later calls change nothing."""
        flight = self._unstarted.pop(request_id, None)
        if flight is None:
            return
        self._prefills.started(request_id, self._running)
        self._not_started -= flight.sequences
        self._running += flight.sequences
        flight.started_step = self._kv.started(flight.sequences)
        elapsed = self._step - flight.dispatched_step
        at_once = elapsed <= flight.expected_steps
        self._last_started_at_once = at_once
        self._seats.started(request_id, at_once)
        self._window.started(elapsed - flight.own_steps, self._seats.places)

    def ended(self, request_id: str) -> None:
        """It has ended, however; exactly once (KeyError: not in flight)."""
        flight = self._flights.pop(request_id)
        if flight.started_step is None:
            del self._unstarted[request_id]
            self._prefills.forget(request_id)
            self._not_started -= flight.sequences
        else:
            self._running -= flight.sequences
        self._kv.ended(flight.prompt_tokens, flight.sequences, flight.started_step)
        self._seats.ended(request_id, flight.sequences)

    def step(self, queue_nonempty: bool) -> None:
        """The engine ended a step; ``queue_nonempty``: we have something it could have had."""
        self._step += 1
        self._prefills.step(self._running)
        self._kv.step()
        self._seats.step()
        overdue = self._overdue()
        if overdue is not None:
            # An engine whose queue is empty lacks no seat, however long a step took to show it.
            if self._kv.has_room() and self._engine_waiting != 0:
                self._seats.overdue(overdue, self._running)
        elif queue_nonempty and self._window_holds() and self._has_free_seat_and_kv():
            self._window.grow(self._seats.places)

    def engine_metrics(
        self, running: int | None, waiting: int | None, kv_used_ratio: float | None
    ) -> None:
        """What the engine says of itself, in sequences and 0..1; None: unknown."""
        self._engine_waiting = waiting
        if running is not None:
            self._seats.seen_running(running)
        preempted = waiting is not None and waiting > self._not_started
        self._kv.reading(kv_used_ratio, self._prefills.tokens, preempted)

    def _window_holds(self) -> bool:
        """Whether a wider one would let something in."""
        return self._not_started >= self.window and self._prefills.has_room(self._running)

    def _has_free_seat_and_kv(self) -> bool:
        seats = self._seats.number
        if seats is None or not self._kv.known:
            return self._last_started_at_once
        return self.in_flight < seats and self._kv.has_room()

    def _overdue(self) -> str | None:
        """The oldest that has not started, if its prefill alone does not explain why."""
        for request_id, flight in self._unstarted.items():
            # Estimates of steps err in proportion: a long prefill is given a quarter more.
            allowed = flight.expected_steps * 5 // 4 + WAIT_BOUND_STEPS
            return request_id if self._step - flight.dispatched_step > allowed else None
        return None
