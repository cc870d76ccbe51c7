"""What the plug-in tells of a step, as the scheduler, the gates and the figures take it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tidegate_sidecar.plugin_steps import NOBODY, PluginSteps
from tidegate_sidecar.ticket import Ticket

from tidegate.scheduling.contracts import StepStatistics, decode
from tidegate.scheduling.engine_time import NO_WORK, RequestStep
from tidegate.scheduling.request import Request, Usage
from tidegate.scheduling.step_time_fit import StepWork, decode_work, prefill_work


class Host:
    """A dispatcher that only notes what it is told."""

    loop: Any = None

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = PluginSteps(self, lambda: self.now)
        self.reported: list[tuple[float, list[RequestStep]]] = []
        self.told = 0
        self.started: list[str] = []
        self.held: dict[str, float] = {}
        self.victims: list[tuple[str, int]] = []

    def stepped(self, seconds: float, rows: Sequence[RequestStep], *, learn: bool = True) -> None:
        self.reported.append((seconds, list(rows)))

    def steps_are_told(self) -> None:
        self.told += 1

    def engine_started(self, ticket: Ticket) -> None:
        self.started.append(ticket.request.id)

    def kv_held(self, ratios: Mapping[str, float]) -> None:
        self.held.update(ratios)

    def preempted(self, tenant: str, lost_tokens: int) -> None:
        self.victims.append((tenant, lost_tokens))

    def send(self, sequence: int, prompt_tokens: int = 100, sequences: int = 1) -> Ticket:
        request = Request(f"r{sequence}", "a/b", prompt_tokens, 50, sequences=sequences)
        request.sequence = sequence
        ticket = Ticket(self, request, "")  # type: ignore[arg-type]
        self.steps.dispatched(ticket)
        return ticket

    def tell(self, step: int, **rest: Any) -> list[RequestStep]:
        document = {"version": 1, "step": step, "planned": True, "seconds": 0.02, **rest}
        self.steps.take(decode(StepStatistics, document))
        return self.reported[-1][1]


def test_a_step_is_reported_by_request() -> None:
    host = Host()
    decoding, prompt = host.send(1), host.send(2)
    decoding.output_tokens = 7
    rows = host.tell(
        1,
        decodes=[1],
        prefills=[{"sequence": 2, "tokens": 60, "context_tokens": 32, "reused_tokens": 32}],
        untagged_tokens=5,
    )
    assert host.reported[-1][0] == 0.02
    assert rows == [
        RequestStep("r1", decode_work(107)),
        RequestStep(prompt.request.id, prefill_work(60, 32)),
        RequestStep(NOBODY, StepWork(5)),
    ]
    assert host.told == 1


def test_drafts_are_work_of_their_request() -> None:
    host = Host()
    host.send(1), host.send(2)
    drafts = [{"tier": "t0", "drafted_tokens": 3, "accepted_tokens": 2}]
    rows = host.tell(1, decodes=[1, 2], decode_tokens=[4, 1], drafts=drafts)
    assert [row.work.tokens for row in rows] == [4, 1]
    assert host.steps.figures.acceptance("t0") == pytest.approx(2 / 3)
    assert host.steps.figures.acceptance("t1") is None


def test_what_is_computed_again_is_told_apart_with_its_cause() -> None:
    host = Host()
    host.send(1)
    again = {"sequence": 1, "tokens": 60, "context_tokens": 32, "recomputed_tokens": 40}
    rows = host.tell(1, prefills=[{**again, "caused_by": "t0"}])
    assert rows == [RequestStep("r1", prefill_work(20, 72), prefill_work(40, 32), "t0")]
    rows = host.tell(2, prefills=[{**again, "tokens": 40}])
    assert rows == [RequestStep("r1", NO_WORK, prefill_work(40, 32), None)]
    assert host.steps.figures.recomputed_tokens == 80


def test_several_sequences_of_one_request_share_its_context() -> None:
    host = Host()
    host.send(1, prompt_tokens=90, sequences=3)
    rows = host.tell(1, decodes=[1, 1, 1])
    assert rows == [RequestStep("r1", decode_work(30))] * 3


def test_who_has_ended_is_nobody() -> None:
    host = Host()
    host.steps.ended(host.send(1))
    rows = host.tell(1, decodes=[1], prefills=[{"sequence": 9, "tokens": 4}])
    assert [row.request for row in rows] == [NOBODY, NOBODY]


def test_an_answer_in_one_piece_starts_when_it_decodes() -> None:
    host = Host()
    host.send(1).opaque = True
    host.send(2)
    host.tell(1, prefills=[{"sequence": 1, "tokens": 100}, {"sequence": 2, "tokens": 100}])
    assert host.started == []
    host.tell(2, decodes=[1, 2])
    assert host.started == ["r1"]


def test_usage_knows_decode_steps_and_time_lost_unless_a_step_was_lost() -> None:
    host = Host()
    first, second = host.send(1), host.send(2)
    host.tell(1, decodes=[1, 2])
    host.now = 1.0
    host.tell(2, preemptions=[{"sequence": 1, "cause": "admission", "for_sequence": 2}])
    host.now = 1.5
    host.tell(3, decodes=[1])
    first.usage = Usage(100, 3)
    host.steps.ended(first)
    assert (first.usage.decode_steps, first.usage.preempted_seconds) == (2, 0.5)
    host.tell(5, decodes=[2])
    second.usage = Usage(100, 3)
    host.steps.ended(second)
    assert second.usage.decode_steps is None
    assert host.steps.figures.lost == 1


def test_an_engine_that_starts_anew_loses_no_steps() -> None:
    host = Host()
    host.tell(700, failures_total=2)
    host.tell(701, failures_total=3)
    host.tell(1, failures_total=1)
    figures = host.steps.figures
    assert (figures.steps, figures.lost, figures.failures) == (3, 0, 4)


def test_tiers_are_told_what_they_hold_of_what_they_could() -> None:
    host = Host()
    host.tell(
        1,
        tiers=[
            {"name": "t0", "held_blocks": 30, "room_blocks": 90},
            {"name": "t3", "held_blocks": 0, "room_blocks": 0},
        ],
        pools=[{"name": "p", "nominal_blocks": 20, "held_blocks": 30, "cached_blocks": 4}],
        preemptions=[{"sequence": 3, "cause": "engine"}],
    )
    assert host.held == {"t0": 0.25, "t3": 1.0}
    assert [pool.name for pool in host.steps.figures.pools] == ["p"]
    host.tell(2)
    assert host.steps.figures.pools


def test_blocks_are_held_for_as_long_as_a_request_is_in_the_engine() -> None:
    host = Host()
    ticket = host.send(1)
    pool = {"name": "p", "nominal_blocks": 20, "held_blocks": 30, "cached_blocks": 4}
    tiers = [{"name": "t0", "held_blocks": 30, "room_blocks": 90}]
    host.tell(1, decodes=[1], pools=[pool], tiers=tiers)
    assert [one.held_blocks for one in host.steps.pools()] == [30]
    assert host.steps.held_by_tier() == {"t0": 30}
    host.steps.ended(ticket)
    (idle,) = host.steps.pools()
    assert (idle.nominal_blocks, idle.held_blocks, idle.cached_blocks) == (20, 0, 4)
    assert host.steps.held_by_tier() == {"t0": 0}


def test_a_victims_tenant_is_told_unless_it_has_ended() -> None:
    host = Host()
    ticket = host.send(3)
    victim = {"sequence": 3, "cause": "engine", "lost_tokens": 70}
    host.tell(1, preemptions=[victim, {"sequence": 9, "cause": "engine", "lost_tokens": 5}])
    host.steps.ended(ticket)
    host.tell(2, preemptions=[victim])
    assert host.victims == [("a/b", 70)]


def test_recent_acceptance_forgets() -> None:
    host = Host()
    for step in range(1, 40):
        accepted = 900 if step <= 20 else 100
        drafts = [{"tier": "t0", "drafted_tokens": 1_000, "accepted_tokens": accepted}]
        host.tell(step, drafts=drafts)
    assert host.steps.figures.drafted_total == {"t0": 39_000}
    assert host.steps.figures.accepted_total == {"t0": 20 * 900 + 19 * 100}
    acceptance = host.steps.figures.acceptance("t0")
    assert acceptance is not None
    assert acceptance < 0.15
