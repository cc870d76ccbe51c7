"""The gate between our queue and the engine's own: when one more request may be dispatched.

Theory of operation
-------------------
What waits in the engine's queue waits in the engine's order, so the gate keeps that queue short;
what the engine could have started and had not got is a GPU that idles, so never too short. All
counts are engine *sequences*. The gate is open while all of these hold (and always when nothing is
in flight, so that no wrong belief about the engine can shut it for good):

* ``not_started < window``. Not started is what was dispatched and has shown neither a first token
  nor prefill progress, known here at once. The window starts at what an engine can start in one
  feedback delay (about a step), plus one; it grows by one after each step that ended with free
  seats, free KV and a queue of ours while the window was what held us back; it is halved when more
  than 5% of recent requests waited over two steps in the engine (their 95th percentile exceeds 2).
* Less than two budgets of prefill tokens are outstanding: one for the step that runs, which we
  shall hear of when it ends, and one for the step that the engine begins at that moment. A prompt
  of many budgets passes once less than that is ahead of it. Each step seen is taken to have
  prefilled, oldest first, what the running sequences left of its budget.
* A seat is free, or will be within one feedback delay: ``in flight < seats + ends per step``. So a
  freed seat is taken at once where many end in each step, and nothing waits for a seat where ends
  are rare. Seats are ``max_num_seqs``; not configured, the number that the engine is seen to run
  while others wait in it.
* The KV cache has room for one more prompt. Its capacity is what our requests hold (prompt and one
  token a step) divided by the engine's own figure of use at the same moment, hence in the same
  measure, prefix sharing included.

A step is what the host sees of one: the gap between two tokens of a stream, or the plug-in's step
statistics. Nothing here runs on a timer: places are freed by ends and starts alone. What the engine
does not tell is never taken for zero: without seats or KV the window grows only on evidence that
the last requests were started at once.
"""

from __future__ import annotations

from collections import deque

from tidegate.scheduling.contracts import EngineLimits

DEFAULT_BUDGET_TOKENS = 2_048
TYPICAL_PROMPT_TOKENS = 512
"""For the first window only."""
WAIT_BOUND_STEPS = 2
_WAITS_KEPT = 64
_WAITS_NEEDED = 20
_ENDS_OVER_STEPS = 32
_PROMPTS_OVER = 16
_KV_FULL_RATIO = 0.98
_KV_MEASURABLE_RATIO = 0.05


class _Flight:
    __slots__ = ("dispatched_step", "own_steps", "prefill_tokens", "prompt_tokens", "sequences")

    def __init__(self, sequences: int, prompt_tokens: int, step: int, own_steps: int) -> None:
        self.sequences = sequences
        self.prompt_tokens = prompt_tokens
        self.prefill_tokens = prompt_tokens
        """Left to prefill, as far as the steps seen tell."""
        self.dispatched_step = step
        self.own_steps = own_steps
        """Steps that its own prefill takes."""


class Gate:
    """For pools that generate."""

    def __init__(self, limits: EngineLimits, now: float) -> None:
        self._budget_tokens = DEFAULT_BUDGET_TOKENS
        self._configured_seats: int | None = None
        self._seen_seats: int | None = None
        self.apply_limits(limits)
        self._window = max(2, self._budget_tokens // TYPICAL_PROMPT_TOKENS + 1)
        self._unstarted: dict[str, _Flight] = {}
        self._started: dict[str, tuple[_Flight, int]] = {}
        """With the step in which each started."""
        self._not_started = 0
        self._running = 0
        self._prefill_tokens = 0
        self._step = 0
        self._ended_in_step = 0
        self._ends_per_step = 0.0
        self._waits: deque[bool] = deque(maxlen=_WAITS_KEPT)
        """Of each recent start, whether it waited longer than the bound."""
        self._last_start_at_once = False
        self._held_prompts = 0
        self._held_since = 0
        """Sum over running sequences of the step in which they started."""
        self._mean_prompt_tokens = 0.0
        self._kv_capacity_tokens: float | None = None
        self._kv_known = False

    @property
    def window(self) -> int:
        """Sequences that may be dispatched and not started."""
        return self._window

    @property
    def not_started(self) -> int:
        """Sequences dispatched without first token or prefill progress."""
        return self._not_started

    @property
    def in_flight(self) -> int:
        """Sequences dispatched and not ended."""
        return self._not_started + self._running

    def apply_limits(self, limits: EngineLimits) -> None:
        """Hot reload of what is configured of the engine."""
        self._budget_tokens = limits.max_num_batched_tokens or DEFAULT_BUDGET_TOKENS
        self._configured_seats = limits.max_num_seqs

    def is_open(self) -> bool:
        """Whether one more request may be dispatched now."""
        if not self.in_flight:
            return True
        if self._not_started >= self._window:
            return False
        if self._prefill_tokens >= 2 * self._budget_tokens:
            return False
        seats = self._seats()
        if seats is not None and self.in_flight >= seats + int(self._ends_per_step + 0.5):
            return False
        return self._has_kv()

    def dispatched(self, request_id: str, sequences: int, prompt_tokens: int, now: float) -> None:
        """A request goes to the engine."""
        own_steps = prompt_tokens // self._prefill_per_step() + 1
        self._unstarted[request_id] = _Flight(sequences, prompt_tokens, self._step, own_steps)
        self._not_started += sequences
        self._prefill_tokens += prompt_tokens
        self._held_prompts += prompt_tokens
        if not self._mean_prompt_tokens:
            self._mean_prompt_tokens = prompt_tokens
        self._mean_prompt_tokens += (prompt_tokens - self._mean_prompt_tokens) / _PROMPTS_OVER

    def started(self, request_id: str, now: float) -> None:
        """Its first token or prefill progress was seen; later calls change nothing."""
        flight = self._unstarted.pop(request_id, None)
        if flight is None:
            return
        self._forget_prefill(flight)
        self._running += flight.sequences
        self._held_since += flight.sequences * self._step
        self._started[request_id] = (flight, self._step)
        self._judge_wait(self._step - flight.dispatched_step - flight.own_steps)

    def ended(self, request_id: str, now: float) -> None:
        """It has ended, however; exactly once (KeyError: not in flight)."""
        flight = self._unstarted.pop(request_id, None)
        if flight is not None:
            self._forget_prefill(flight)
        else:
            flight, step = self._started.pop(request_id)
            self._running -= flight.sequences
            self._held_since -= flight.sequences * step
            self._ended_in_step += flight.sequences
        self._held_prompts -= flight.prompt_tokens

    def step(self, now: float, queue_nonempty: bool) -> None:
        """The engine ended a step; ``queue_nonempty``: we have something it could have had."""
        self._prefilled(self._prefill_per_step())
        self._step += 1
        self._ends_per_step += (self._ended_in_step - self._ends_per_step) / _ENDS_OVER_STEPS
        self._ended_in_step = 0
        held_back = queue_nonempty and self._not_started >= self._window
        if held_back and self._has_free_seat() and self._has_free_kv():
            self._window += 1

    def engine_metrics(
        self, running: int | None, waiting: int | None, kv_used_ratio: float | None, now: float
    ) -> None:
        """What the engine says of itself, in sequences and 0..1; None: unknown."""
        if running is not None and waiting is not None:
            if waiting > 0 and running > 0:
                self._seen_seats = running
            elif self._seen_seats is not None and running >= self._seen_seats:
                self._seen_seats = running + 1  # nothing waits: it may have room for more
        self._kv_known = kv_used_ratio is not None
        if kv_used_ratio is None or kv_used_ratio < _KV_MEASURABLE_RATIO or not self._running:
            return
        if waiting is not None and waiting > self._not_started:
            return  # it has preempted some: they hold nothing, so the quotient would be too high
        self._kv_capacity_tokens = self._held_tokens() / min(kv_used_ratio, 1.0)

    def _seats(self) -> int | None:
        if self._configured_seats is not None:
            return self._configured_seats
        return self._seen_seats

    def _has_free_seat(self) -> bool:
        seats = self._seats()
        return self._last_start_at_once if seats is None else self.in_flight < seats

    def _has_kv(self) -> bool:
        capacity = self._kv_capacity_tokens
        if capacity is None:
            return True  # the window alone decides
        return self._held_tokens() + self._mean_prompt_tokens <= _KV_FULL_RATIO * capacity

    def _has_free_kv(self) -> bool:
        return self._has_kv() if self._kv_known else self._last_start_at_once

    def _held_tokens(self) -> int:
        return self._held_prompts + self._running * self._step - self._held_since

    def _prefill_per_step(self) -> int:
        # vLLM serves running sequences first; a budget they fill leaves prefills waiting anyway.
        return max(self._budget_tokens - self._running, self._budget_tokens // 4, 1)

    def _prefilled(self, tokens: int) -> None:
        for flight in self._unstarted.values():
            done = min(tokens, flight.prefill_tokens)
            flight.prefill_tokens -= done
            self._prefill_tokens -= done
            tokens -= done
            if not tokens:
                return

    def _forget_prefill(self, flight: _Flight) -> None:
        self._not_started -= flight.sequences
        self._prefill_tokens -= flight.prefill_tokens
        flight.prefill_tokens = 0

    def _judge_wait(self, waited_steps: int) -> None:
        self._last_start_at_once = waited_steps <= 1
        self._waits.append(waited_steps > WAIT_BOUND_STEPS)
        if len(self._waits) >= _WAITS_NEEDED and sum(self._waits) * 20 > len(self._waits):
            self._window = max(1, self._window // 2)
            self._waits.clear()


class TokensInFlightGate:
    """For pools that embed: no stream shows a start, so prompt tokens in flight are counted.

    Open while less than two budgets are in flight (one in the step that runs, one for the next),
    and always when nothing is. Where ``max_num_seqs`` is known, two steps' worth of it bound the
    sequences likewise.
    """

    def __init__(self, limits: EngineLimits, now: float) -> None:
        self._flights: dict[str, tuple[int, int]] = {}
        """Sequences and prompt tokens of each."""
        self._sequences = 0
        self._tokens = 0
        self._budget_tokens = DEFAULT_BUDGET_TOKENS
        self._seats: int | None = None
        self.apply_limits(limits)

    @property
    def window(self) -> int:
        """Sequences of the present mean length that may be in flight."""
        if not self._tokens:
            return max(1, 2 * (self._seats or 1))
        fit = 2 * self._budget_tokens * self._sequences // self._tokens
        return max(1, fit if self._seats is None else min(fit, 2 * self._seats))

    @property
    def not_started(self) -> int:
        """Sequences in flight: none shows its start."""
        return self._sequences

    @property
    def in_flight(self) -> int:
        """Sequences dispatched and not ended."""
        return self._sequences

    def apply_limits(self, limits: EngineLimits) -> None:
        """Hot reload of what is configured of the engine."""
        self._budget_tokens = limits.max_num_batched_tokens or DEFAULT_BUDGET_TOKENS
        self._seats = limits.max_num_seqs

    def is_open(self) -> bool:
        """Whether one more request may be dispatched now."""
        if not self._flights:
            return True
        if self._seats is not None and self._sequences >= 2 * self._seats:
            return False
        return self._tokens < 2 * self._budget_tokens

    def dispatched(self, request_id: str, sequences: int, prompt_tokens: int, now: float) -> None:
        """A request goes to the engine."""
        self._flights[request_id] = (sequences, prompt_tokens)
        self._sequences += sequences
        self._tokens += prompt_tokens

    def started(self, request_id: str, now: float) -> None:
        """Nothing to learn: it holds its tokens until it ends."""

    def ended(self, request_id: str, now: float) -> None:
        """It has ended, however; exactly once (KeyError: not in flight)."""
        sequences, tokens = self._flights.pop(request_id)
        self._sequences -= sequences
        self._tokens -= tokens

    def step(self, now: float, queue_nonempty: bool) -> None:
        """Nothing to learn."""

    def engine_metrics(
        self, running: int | None, waiting: int | None, kv_used_ratio: float | None, now: float
    ) -> None:
        """Nothing to learn."""
