"""The engine's steps as its streams show them: what a scheduler is told where there is no plug-in.

Theory of operation. A running sequence gets one token a step, so a step has ended when a stream
brings more tokens than it has sequences since the last one did, :data:`LEAST_STEP_SECONDS` later or
more; its time is the gap between the first tokens of the two. Who was in it:

* each stream that brought a token: a decode, or the last part of its prompt where that was its
  first;
* who has not started: the step is taken to have computed as many prompt tokens as its budget and
  the decodes left it, oldest first, as the gate takes it; what is left of a prompt at its start
  belongs to the step of the start;
* answers that are not streamed, once their prompts are taken to be computed: a decode each.

The time before the first token, from a dispatch to an idle engine on, is one step. Where nothing
streams, the time to an end is, or of :data:`LEAST_UNSEEN_SECONDS` in which several ended; such a
step is charged to those in it, and nothing is learned of it.

Bound: what is reported sums to the time from the first dispatch to the last token, as long as
anything is in flight and tokens come in the order of the engine's batch, oldest first; where one
that starts overtakes another, a step may be lost. A token is charged a step late at most. What one
request is charged is as exact as the guesses above: the plug-in's statistics know better and take
this module's place.

Invariant: each ticket that was told is forgotten when it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidegate.scheduling.engine_prefills import DEFAULT_BUDGET_TOKENS
from tidegate.scheduling.engine_time import RequestStep
from tidegate.scheduling.step_time_fit import StepWork, prefill_work
from tidegate_sidecar.ticket import Ticket

MOST_UNHEARD_STEPS = 20
"""Of an engine whose plug-in tells of its steps: it does so no more."""


LEAST_STEP_SECONDS = 0.001
"""Tokens that come nearer together are one step's: no engine of GPUs takes steps so short."""
LEAST_UNSEEN_SECONDS = 0.005
"""Ends that come nearer together are one step's."""


class StepReports(Protocol):
    """Whom whoever sees the engine's steps tells of them: this module, or a reader of the plug-in's
    statistics. The dispatcher is one."""

    def stepped(self, seconds: float, rows: Sequence[RequestStep], *, learn: bool = True) -> None:
        """A step ended, before the progress and the ends that it brought or, at the latest, before
        the next one; by request what each did. ``learn`` False: its time says nothing of others."""


class TokenGaps:
    """Of one engine that generates."""

    def __init__(self, reports: StepReports) -> None:
        self._reports = reports
        self.budget_tokens = DEFAULT_BUDGET_TOKENS
        """Most tokens of a step."""
        self._unheard_steps: int | None = None
        """Ended since somebody else told one; unset: nobody does."""
        self._step = 0
        self._began = 0.0
        """When the open step did."""
        self._first_token: float | None = None
        """When it brought its first; unset: none yet."""
        self._brought: list[Ticket] = []
        """Whose tokens."""
        self._silent: dict[Ticket, None] = {}
        """In flight and, so far or for good, without tokens to see; oldest first."""
        self._streams = 0
        """In flight, and their tokens can be seen."""
        self._decoding = 0
        """Of those, the ones that have shown any."""

    def mute(self) -> None:
        """Somebody else told of a step: none is reported, unless many more end untold."""
        self._unheard_steps = 0

    def dispatched(self, ticket: Ticket, now: float) -> None:
        """It goes to the engine."""
        if not self._silent and not self._streams:
            self._began, self._first_token = now, None
        request = ticket.request
        ticket.unfilled_tokens = max(request.prompt_tokens - request.expected_cached_tokens, 1)
        self._silent[ticket] = None
        self._streams += 1

    def opaque(self, ticket: Ticket) -> None:
        """Its answer will not be streamed; after ``dispatched``."""
        self._streams -= 1

    def tokens(self, ticket: Ticket, tokens: int, now: float) -> None:
        """Tokens came (0: the sign of its start); before they are counted on the ticket."""
        if ticket.step == self._step:
            assert self._first_token is not None
            in_one = ticket.step_tokens + tokens <= ticket.request.sequences
            if in_one or now - self._first_token < LEAST_STEP_SECONDS:
                ticket.step_tokens += tokens
                return
            self._close(now)
            self._first_token = now
        elif self._first_token is None:
            self._first_token = now
        if ticket.step < 0 and not ticket.opaque:
            self._decoding += 1
        ticket.step = self._step
        ticket.step_tokens = tokens
        self._silent.pop(ticket, None)
        self._brought.append(ticket)

    def ended(self, ticket: Ticket, now: float) -> None:
        """It is out of flight, however; before the scheduler hears of it."""
        if ticket.opaque:
            if ticket.sent:
                self.tokens(ticket, ticket.request.sequences, now)
        else:
            self._streams -= 1
            self._decoding -= ticket.step >= 0
        self._silent.pop(ticket, None)
        if self._first_token is None or self._decoding:
            return  # somebody's next token will tell the end of the step
        together = self._silent and now - self._began < LEAST_UNSEEN_SECONDS
        if self._streams or not together:
            self._close(now)

    def _close(self, now: float) -> None:
        """The open step has ended, and another begins."""
        assert self._first_token is not None
        rows = self._rows()
        learn = not all(ticket.opaque for ticket in self._brought)
        end = self._first_token if learn else now
        seconds = end - self._began
        self._began, self._first_token = end, None
        self._step += 1
        self._brought = []
        if self._unheard_steps is not None:
            self._unheard_steps += 1
            if self._unheard_steps <= MOST_UNHEARD_STEPS:
                return
            self._unheard_steps = None
        self._reports.stepped(seconds, rows, learn=learn)

    def _rows(self) -> list[RequestStep]:
        rows = []
        left = self.budget_tokens
        for ticket in self._brought:
            request = ticket.request
            if ticket.unfilled_tokens:
                rows.append(_prefill(ticket, ticket.unfilled_tokens))
                continue
            count = ticket.step_tokens or 1
            left -= count
            context = request.prompt_tokens + ticket.output_tokens
            rows.append(RequestStep(request.id, StepWork(count, 0.0, count, count * context)))
        for ticket in self._silent:
            request = ticket.request
            if ticket.unfilled_tokens > 1 or (ticket.opaque and ticket.unfilled_tokens):
                # The last token of a prompt is computed in the step that shows its start.
                most = ticket.unfilled_tokens - (not ticket.opaque)
                if (tokens := min(most, left)) > 0 and (request.dispatched or 0.0) <= self._began:
                    left -= tokens
                    rows.append(_prefill(ticket, tokens))
            elif ticket.opaque:
                count = request.sequences
                context = request.prompt_tokens
                rows.append(RequestStep(request.id, StepWork(count, 0.0, count, count * context)))
        return rows


def _prefill(ticket: Ticket, tokens: int) -> RequestStep:
    request = ticket.request
    work = prefill_work(tokens, request.prompt_tokens - ticket.unfilled_tokens)
    ticket.unfilled_tokens -= tokens
    return RequestStep(request.id, work)
