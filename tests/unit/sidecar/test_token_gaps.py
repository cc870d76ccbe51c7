"""The engine's steps as streams show them: whose they are, and that no time is lost or made up."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate_sidecar.ticket import Ticket, TicketHost
from tidegate_sidecar.token_gaps import MOST_UNHEARD_STEPS, TokenGaps

from tidegate.scheduling.engine_time import RequestStep
from tidegate.scheduling.request import Request


class Engine:
    """A clock, and what was reported of the steps of an engine with a budget of 1,000 tokens."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, dict[str, RequestStep], bool]] = []
        self.gaps = TokenGaps(self)
        self.gaps.budget_tokens = 1_000
        self.now = 0.0
        self.spread = 0.001
        """Between two tokens of one step."""
        self.in_flight: dict[str, Ticket] = {}

    def stepped(self, seconds: float, rows: Sequence[RequestStep], *, learn: bool = True) -> None:
        assert seconds >= 0
        assert len({row.request for row in rows}) == len(rows)
        self.steps.append((seconds, {row.request: row for row in rows}, learn))

    def send(self, name: str, prompt: int = 10, *, opaque: bool = False, n: int = 1) -> Ticket:
        request = Request(name, "t", prompt, 100, sequences=n)
        request.dispatched = self.now
        host = cast(TicketHost, SimpleNamespace(loop=cast(asyncio.AbstractEventLoop, None)))
        ticket = self.in_flight[name] = Ticket(host, request, "")
        ticket.sent = True
        self.gaps.dispatched(ticket, self.now)
        if opaque:
            ticket.opaque = True
            self.gaps.opaque(ticket)
        return ticket

    def step(self, seconds: float, *names: str, tokens: int = 1) -> None:
        """After so long, those bring tokens, a moment one after the other."""
        self.now += seconds
        for name in names:
            ticket = self.in_flight[name]
            self.gaps.tokens(ticket, tokens, self.now)
            ticket.output_tokens += tokens
            self.now += self.spread

    def end(self, name: str) -> None:
        self.gaps.ended(self.in_flight.pop(name), self.now)

    def work(self, name: str) -> tuple[int, int]:
        """Tokens and decode rows that were reported of it in all."""
        rows = [step[1][name].work for step in self.steps if name in step[1]]
        return sum(work.tokens for work in rows), sum(work.decode_rows for work in rows)


def test_one_stream_pays_for_all_of_its_time() -> None:
    engine = Engine()
    engine.send("a", prompt=500)
    for _ in range(5):
        engine.step(0.02, "a")
    engine.end("a")
    assert [round(seconds, 6) for seconds, _, _ in engine.steps] == [0.02] + 4 * [0.021]
    assert engine.work("a") == (504, 4)
    engine.now += 60  # an idle engine costs nobody anything
    engine.send("b")
    engine.step(0.05, "b")
    engine.end("b")
    assert engine.steps[-1][0] == pytest.approx(0.05)


def test_a_long_prompt_is_charged_in_the_steps_that_compute_it() -> None:
    engine = Engine()
    engine.send("a")
    engine.step(0.02, "a")
    engine.send("long", prompt=2_500)
    for _ in range(3):
        engine.step(0.05, "a")
    engine.step(0.05, "a", "long")
    engine.step(0.02, "long", "a")
    prefills = [rows["long"].work.tokens for _, rows, _ in engine.steps if "long" in rows]
    # It came during the step that brought the second token; the decode leaves 999 tokens a step.
    assert prefills == [999, 999, 502]
    assert all("a" in rows for _, rows, _ in engine.steps)


def test_the_choices_of_one_request_share_its_steps() -> None:
    engine = Engine()
    engine.send("a", n=3)
    for _ in range(4):
        engine.step(0.02, "a", "a", "a")
    engine.end("a")
    assert len(engine.steps) == 4
    assert engine.work("a") == (10 + 3 * 3, 3 * 3)


def test_what_is_not_streamed_decodes_beside_what_is() -> None:
    engine = Engine()
    engine.send("whole", prompt=100, opaque=True)
    engine.send("a")
    for _ in range(6):
        engine.step(0.02, "a")
    engine.end("whole")
    tokens, decodes = engine.work("whole")
    assert (tokens, decodes) == (104, 4)
    assert all(learn for _, _, learn in engine.steps)


def test_where_nothing_streams_ends_are_charged_and_nothing_is_learned() -> None:
    engine = Engine()
    for name in "ab":
        engine.send(name, prompt=100, opaque=True)
    engine.now += 1.0
    engine.end("a")
    engine.now += 0.5
    engine.end("b")
    assert [(seconds, learn) for seconds, _, learn in engine.steps] == [(1.0, False), (0.5, False)]
    assert engine.work("a")[0] == 100
    assert engine.work("b")[0] == 101


def test_who_was_never_sent_was_in_no_step() -> None:
    engine = Engine()
    engine.send("a", opaque=True).sent = False
    engine.end("a")
    engine.send("b")
    engine.end("b")
    assert engine.steps == []


def test_another_reporter_silences_it_while_it_reports() -> None:
    engine = Engine()
    engine.send("a")
    for _ in range(MOST_UNHEARD_STEPS):
        engine.gaps.mute()
        engine.step(0.02, "a")
    assert engine.steps == []
    for _ in range(MOST_UNHEARD_STEPS - 1):
        engine.step(0.02, "a")
    assert engine.steps == []
    for _ in range(3):
        engine.step(0.02, "a")
    assert len(engine.steps) in (1, 2, 3)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_time_is_lost_or_made_up(data: st.DataObject) -> None:
    engine = Engine()
    engine.spread = 1e-6
    busy, last_token = 0.0, 0.0
    since: float | None = None
    started: Counter[str] = Counter()
    for i in range(data.draw(st.integers(1, 25))):
        choice: Any = data.draw(st.sampled_from(["send", "step", "step", "step", "end"]))
        if choice == "send":
            if not engine.in_flight:
                since = engine.now
            engine.send(str(i), data.draw(st.integers(1, 3_000)))
        elif choice == "step" and engine.in_flight:
            # All that decode bring a token, in the order in which they began, and after them any
            # that are done with their prompts.
            fresh = [name for name in engine.in_flight if not started[name]]
            those = [name for name in started if name in engine.in_flight]
            those += fresh[: data.draw(st.integers(int(not those), len(fresh)))]
            engine.step(0.02, *those)
            started.update(those)
            last_token = engine.now
        elif choice == "end" and engine.in_flight:
            for name in sorted(engine.in_flight):
                if started[name]:
                    engine.end(name)
                    break
            if not engine.in_flight:
                assert since is not None
                busy += last_token - since
                reported = sum(seconds for seconds, _, _ in engine.steps)
                assert reported == pytest.approx(busy, abs=1e-3)
    for _, rows, _ in engine.steps:
        assert all(row.work.tokens > 0 for row in rows.values())


def test_ends_that_come_at_once_are_one_steps_and_no_time_is_lost() -> None:
    engine = Engine()
    for name in "abcd":
        engine.send(name, prompt=10, opaque=True)
    for gap, name in ((0.002, "a"), (0.001, "b"), (0.004, "c"), (0.001, "d")):
        engine.now += gap
        engine.end(name)
    assert [sorted(rows) for _, rows, _ in engine.steps] == [["a", "b", "c", "d"], ["d"]]
    assert sum(seconds for seconds, _, _ in engine.steps) == pytest.approx(0.008)
