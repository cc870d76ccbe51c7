"""The gate between our queue and the engine's own: when one more request may be dispatched.

Theory of operation
-------------------
What waits in the engine's queue waits in the engine's order, so the gate keeps that queue short;
what the engine could have started and had not got is a GPU that idles, so never too short. All
counts are engine *sequences*. The gate is open while all of these hold (and always when nothing is
in flight, so that no wrong belief about the engine can shut it for good):

* ``not_started < window``. Not started is what was dispatched and has shown neither a first token
  nor prefill progress, known here at once. The window starts at what an engine can start in one
  feedback delay (the step that runs and the one begun at its end), plus one; it grows by one after
  each step that ended with free seats, free KV and a queue of ours while the window alone was what
  held us back; it is halved when more than 5% of recent requests waited over two steps in the
  engine (their 95th percentile exceeds 2). Where the seats are known, it is at most their number
  and what may stand ready for one, plus one: no more can start, and half of more would change
  nothing.
* Less than two steps' worth of prefill tokens is outstanding (a step's worth: what the running
  sequences leave of its budget): one for the step that runs, which we shall hear of when it ends,
  and one for the step that the engine begins at that moment. A prompt of many budgets passes once
  less than that is ahead of it. Each step seen is taken to have prefilled its worth, oldest first;
  a start says where the engine really is, so that miscounted steps and misjudged prompts never add
  up: behind the oldest, it has done no more than one step's worth. Where somebody was promised a
  time between tokens and no plug-in keeps the prefill budget, two of that are the bound while
  anything decodes: each prefill token of a step makes all decodes wait. Where the engine computes
  no more than a chunk of one prompt in a step, a longer one has two of those outstanding, and its
  prefill takes as many steps as it has chunks.
* A seat is free or about to be (``engine_seats``).
* The KV cache has room for one more prompt (``engine_kv``).

A step is what the host sees of one: the gap between two tokens of a stream, or the plug-in's step
statistics. Nothing here runs on a timer: places are freed by ends and starts alone. What the engine
does not tell is never taken for zero: without seats or KV the window grows only on evidence that
the last request was started at once.
"""

from __future__ import annotations

from collections import deque

from tidegate.scheduling.contracts import EngineLimits
from tidegate.scheduling.engine_kv import EngineKv
from tidegate.scheduling.engine_seats import WAIT_BOUND_STEPS, EngineSeats

DEFAULT_BUDGET_TOKENS = 2_048
_WAITS_KEPT = 64
_WAITS_NEEDED = 20


class _Flight:
    __slots__ = (
        "dispatched_step",
        "expected_steps",
        "own_steps",
        "prefill_tokens",
        "prompt_tokens",
        "sequences",
        "started_step",
    )

    def __init__(
        self, sequences: int, prompt_tokens: int, step: int, own_steps: int, expected_steps: int
    ) -> None:
        self.sequences = sequences
        self.prompt_tokens = prompt_tokens
        self.prefill_tokens = prompt_tokens
        """Left to prefill, as far as the steps seen tell."""
        self.dispatched_step = step
        self.own_steps = own_steps
        """Steps that its own prefill takes."""
        self.expected_steps = expected_steps
        """Steps that its prefill takes with those before it; longer, and it lacks a seat or KV."""
        self.started_step: int | None = None


class Gate:
    """For pools that generate."""

    def __init__(self, limits: EngineLimits, now: float) -> None:
        self._seats = EngineSeats()
        self._kv = EngineKv()
        self._budget_tokens = DEFAULT_BUDGET_TOKENS
        self._prefill_window_tokens: int | None = None
        self._chunk_tokens: int | None = None
        self.apply_limits(limits)
        self._window = 2
        self._flights: dict[str, _Flight] = {}
        self._unstarted: dict[str, _Flight] = {}
        """Oldest first."""
        self._not_started = 0
        self._running = 0
        self._prefill_tokens = 0
        """Outstanding, of those not started."""
        self._step = 0
        self._late: deque[bool] = deque(maxlen=_WAITS_KEPT)
        """Of each recent start, whether it waited longer than the bound."""
        self._last_started_at_once = False
        self._engine_waiting: int | None = None
        """As its last metrics say."""

    @property
    def window(self) -> int:
        """Sequences that may be dispatched and not started."""
        places = self._seats.places
        return self._window if places is None else min(self._window, max(2, places + 1))

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
        self._budget_tokens = limits.max_num_batched_tokens or DEFAULT_BUDGET_TOKENS
        budget = prefill_budget_tokens
        self._prefill_window_tokens = None if budget is None else 2 * budget
        self._chunk_tokens = chunk_tokens
        self._seats.configured = limits.max_num_seqs

    def is_open(self) -> bool:
        """Whether one more request may be dispatched now."""
        if not self._flights:
            return True
        return self._line_is_short() and self._has_place()

    def lacks_place(self) -> bool:
        """Whether it is closed for want of a seat or of KV alone, such as a victim would give."""
        return bool(self._flights) and self._line_is_short() and not self._has_place()

    def _line_is_short(self) -> bool:
        return self._not_started < self.window and self._prefill_has_room()

    def _prefill_has_room(self) -> bool:
        most = 2 * self._prefill_per_step()
        if self._prefill_window_tokens is not None and self._running:
            most = min(most, self._prefill_window_tokens)
        return self._outstanding_tokens() < most

    def _outstanding_tokens(self) -> int:
        """Prefill tokens that the next two steps could compute if their budgets had room."""
        chunk = self._chunk_tokens
        if chunk is None:
            return self._prefill_tokens
        return sum(
            [min(f.prefill_tokens, 2 * chunk * f.sequences) for f in self._unstarted.values()]
        )

    def _has_place(self) -> bool:
        return self._seats.has_room(self.in_flight) and self._kv.has_room()

    def dispatched(self, request_id: str, sequences: int, prompt_tokens: int, now: float) -> None:
        """A request goes to the engine."""
        per_step = self._prefill_per_step()
        own_steps = prompt_tokens // self._most_of_one(sequences, per_step) + 1
        ahead_steps = (self._prefill_tokens + prompt_tokens) // per_step + 1
        expected_steps = max(ahead_steps, own_steps) + 1
        flight = _Flight(sequences, prompt_tokens, self._step, own_steps, expected_steps)
        self._seats.dispatched(request_id, self.in_flight)
        self._kv.dispatched(prompt_tokens)
        self._flights[request_id] = self._unstarted[request_id] = flight
        self._not_started += sequences
        self._prefill_tokens += prompt_tokens
        if not self._step:
            mean_tokens = self._prefill_tokens // len(self._unstarted)
            self._window = max(2, 2 * self._budget_tokens // max(1, mean_tokens) + 1)

    def started(self, request_id: str, now: float) -> None:
        """Its first token or prefill progress was seen; later calls change nothing."""
        flight = self._unstarted.get(request_id)
        if flight is None:
            return
        was_oldest = next(iter(self._unstarted)) == request_id
        del self._unstarted[request_id]
        self._forget_prefill(flight)
        if was_oldest:
            self._take_back_more_than_a_step()
        self._running += flight.sequences
        flight.started_step = self._kv.started(flight.sequences)
        elapsed = self._step - flight.dispatched_step
        at_once = elapsed <= flight.expected_steps
        self._last_started_at_once = at_once
        self._seats.started(request_id, at_once)
        self._note_wait(elapsed - flight.own_steps)

    def ended(self, request_id: str, now: float) -> None:
        """It has ended, however; exactly once (KeyError: not in flight)."""
        flight = self._flights.pop(request_id)
        if flight.started_step is None:
            del self._unstarted[request_id]
            self._forget_prefill(flight)
        else:
            self._running -= flight.sequences
        self._kv.ended(flight.prompt_tokens, flight.sequences, flight.started_step)
        self._seats.ended(request_id, flight.sequences)

    def step(self, now: float, queue_nonempty: bool) -> None:
        """The engine ended a step; ``queue_nonempty``: we have something it could have had."""
        self._step += 1
        self._prefilled(self._prefill_per_step())
        self._kv.step()
        self._seats.step()
        overdue = self._overdue()
        if overdue is not None:
            # An engine whose queue is empty lacks no seat, however long a step took to show it.
            if self._kv.has_room() and self._engine_waiting != 0:
                self._seats.overdue(overdue, self._running)
        elif queue_nonempty and self._window_holds() and self._has_free_seat_and_kv():
            self._window = self.window + 1

    def engine_metrics(
        self, running: int | None, waiting: int | None, kv_used_ratio: float | None, now: float
    ) -> None:
        """What the engine says of itself, in sequences and 0..1; None: unknown."""
        self._engine_waiting = waiting
        if running is not None:
            self._seats.seen_running(running)
        preempted = waiting is not None and waiting > self._not_started
        self._kv.reading(kv_used_ratio, self._prefill_tokens, preempted)

    def _window_holds(self) -> bool:
        """Whether a wider one would let something in."""
        return self._not_started >= self.window and self._prefill_has_room()

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

    def _prefill_per_step(self) -> int:
        # vLLM serves running sequences first; where they fill the budget, prefills crawl.
        return max(self._budget_tokens - self._running, self._budget_tokens // 4, 1)

    def _most_of_one(self, sequences: int, tokens: int) -> int:
        """Of so many tokens of a step, what one request may have."""
        chunk = self._chunk_tokens
        return tokens if chunk is None else min(tokens, chunk * sequences)

    def _prefilled(self, tokens: int) -> None:
        for flight in self._unstarted.values():
            done = min(self._most_of_one(flight.sequences, tokens), flight.prefill_tokens)
            flight.prefill_tokens -= done
            self._prefill_tokens -= done
            tokens -= done
            if not tokens:
                return

    def _take_back_more_than_a_step(self) -> None:
        credit = self._prefill_per_step()
        for flight in self._unstarted.values():
            done = flight.prompt_tokens - flight.prefill_tokens
            if done == 0:
                return
            excess = max(0, done - credit)
            credit -= done - excess
            flight.prefill_tokens += excess
            self._prefill_tokens += excess

    def _forget_prefill(self, flight: _Flight) -> None:
        self._not_started -= flight.sequences
        self._prefill_tokens -= flight.prefill_tokens
        flight.prefill_tokens = 0

    def _note_wait(self, waited_steps: int) -> None:
        self._late.append(waited_steps > WAIT_BOUND_STEPS)
        if len(self._late) >= _WAITS_NEEDED and sum(self._late) * 20 > len(self._late):
            self._window = max(1, self.window // 2)
            self._late.clear()
