"""What `tidegate explain` says in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tidegate.cli.explain_text import request_lines, tenant_lines
from tidegate.scheduling.contracts import (
    Hold,
    Lateness,
    NoForecast,
    PromiseKept,
    RequestExplanation,
    RequestState,
    SchedulingMode,
    TenantExplanation,
    TenantRequests,
    UsageRecord,
    loads,
)

EXAMPLES = Path(__file__).resolve().parents[2] / "contracts"
WAITING = loads(RequestExplanation, (EXAMPLES / "request_explanation.json").read_text())
TENANT = loads(TenantExplanation, (EXAMPLES / "tenant_explanation.json").read_text())
RECORD = loads(UsageRecord, (EXAMPLES / "usage_record.json").read_text())


def test_a_request_that_waits() -> None:
    assert list(request_lines(WAITING)) == [
        "request 3f1c9a0d7b2e4c5f60718293 of team-a/alice (tier t2) waits, 1.5 s so far",
        "  place 4 of 12 in its tenant's queue; 2 of its tenant's run",
        "  tier t0 goes first (2 waiting): its priority is higher",
        "  1 tenant of its tier is before its own: team-c/carol (5 waiting)",
        "  by weight its tenant is due 25 % of what its tier gets, and more, free of debt, while "
        "others ask for less; it owes 310 ms of the engine, and misses turns until that is paid",
        "  predicted start: in 2.4 s, end: in 6.1 s; later, if tiers that go first are sent more",
        "  in the engine now: 8 of 8 seats: team-b/bob (t0) 8",
        "  when it came, 8 were in the engine of 8 seats: team-b/bob (t0) 6, team-a/alice (t2) 2",
        "  when it came, 3 waited: team-a/alice (t2) 3",
        "  sent to the engine while it waited: team-b/bob (t0) 14, team-a/alice (t2) 3",
    ]


def test_what_holds_a_request_and_an_order_by_arrival() -> None:
    assert WAITING.standing is not None
    standing = replace(
        WAITING.standing,
        hold=Hold.IN_FLIGHT_LIMIT,
        tenant_max_in_flight=2,
        mode=SchedulingMode.FIRST_COME_FIRST_SERVED,
        ahead_in_arrival_order=7,
        starts_in_seconds=None,
        no_forecast=NoForecast.STARVED,
        tenant_share_percent=100,
    )
    text = "\n".join(request_lines(replace(WAITING, standing=standing)))
    assert "2 of its tenant's run, at most 2 may\n  it waits for one of those to end" in text
    assert "serves by arrival (FirstComeFirstServed): 7 requests came before it" in text
    assert "predicted start: never, while tiers that go first are sent all" in text
    assert "no other tenant of its tier sends now\n" in text
    assert "is due" not in text


def test_requests_that_run_and_that_have_ended() -> None:
    running = replace(
        WAITING, state=RequestState.RUNNING, standing=None, running_seconds=0.25, output_tokens=9
    )
    assert list(request_lines(running))[:2] == [
        "request 3f1c9a0d7b2e4c5f60718293 of team-a/alice (tier t2) runs since 250 ms, "
        "after a wait of 1.5 s",
        "  9 output tokens so far",
    ]
    late = replace(RECORD, vft_skew=0.5, vft_skew_cause="prefill")
    ended = replace(WAITING, state=RequestState.ENDED, standing=None, record=late)
    assert list(request_lines(ended))[:4] == [
        "request 3f1c9a0d7b2e4c5f60718293 of team-a/alice (tier t2): completed",
        "  waited 40 ms, first token after 180 ms, took 2.8 s in all",
        "  412 (384 cached) + 96 tokens, 62 ms of the engine",
        "  it ended 50 % later than was expected, by prefill",
    ]


def test_a_tenant_that_reached_its_limit() -> None:
    assert list(tenant_lines(TENANT)) == [
        "tenant team-a/alice (tier t2): 0 waiting, 0 running",
        "  limit minute: 60 of 60 requests a minute",
        "  ended in the last 60.0 s: 1 rate_limited",
        "  promised: a first token within 2.0 s",
        "  ended since the sidecar started, 3h ago: 60 completed, 1 rate_limited",
        "  a01c9a0d7b2e4c5f60718293, 11s ago: rate_limited by limit minute (60 requests a minute), "
        "told to retry after 12 s",
    ]


def test_a_throttled_request_names_its_expected_wait_its_promise_and_who_was_before_it() -> None:
    record = replace(
        RECORD, outcome="throttled", retry_after_seconds=9, prompt_tokens=0, output_tokens=0,
        queued_seconds=None,
    )  # fmt: skip
    lines = list(
        request_lines(
            replace(
                WAITING,
                state=RequestState.ENDED,
                waited_seconds=0,
                standing=None,
                in_engine_now=(),
                record=record,
                lateness=Lateness(10.5, 0.5, 2.0),
                in_engine=(TenantRequests("team-b/batch", "free", 4),),
                engine_seats=4,
                arrival_complete=False,
                served_instead=(),
            )
        )
    )
    assert lines == [
        "request 3f1c9a0d7b2e4c5f60718293 of team-a/alice (tier t2): throttled, told to retry "
        "after 9 s",
        "  its first token was expected after 11.0 s (10.5 s of it in the queue); promised: "
        "within 2.0 s",
        "  when it came, 4 were in the engine of 4 seats, as far as is remembered: "
        "team-b/batch (free) 4",
        "  when it came, 3 waited, as far as is remembered: team-a/alice (t2) 3",
    ]
    starved = replace(WAITING, record=record, lateness=Lateness(None, 0.5, 2.0))
    assert "expected never, while tiers that go first" in "\n".join(request_lines(starved))


def test_a_tenants_oldest_wait_and_its_slowest_request_of_the_last_minute() -> None:
    waits = replace(
        TENANT, queued=8, oldest_wait_seconds=312.0, oldest_request="r7", slowest=RECORD
    )
    head, *lines = tenant_lines(waits)
    assert head == (
        "tenant team-a/alice (tier t2): 8 waiting (the oldest for 312 s: r7), 0 running"
    )
    (slowest,) = [line for line in lines if "slowest" in line]
    assert slowest.startswith(f"  slowest of these: {RECORD.id}, ")
    assert "ago: completed, waited 40 ms" in slowest


def test_of_a_tenant_nobody_waits_for_its_last_requests_say_how_long_they_did() -> None:
    served = replace(TENANT, last=(RECORD,), told_at=0.0)
    assert list(tenant_lines(served))[-1].startswith(f"  {RECORD.id}: {RECORD.outcome}, waited ")
    assert "first token after" in list(tenant_lines(served))[-1]


def test_one_that_nothing_goes_before_waits_for_a_seat_and_names_who_has_them() -> None:
    assert WAITING.standing is not None
    standing = replace(
        WAITING.standing, position=1, hold=Hold.ENGINE, tiers_ahead=(), tenants_ahead=0,
        next_tenants=(), starts_in_seconds=None, finishes_in_seconds=None, tenant_debt=-40.0,
        no_forecast=NoForecast.ENGINE,
    )  # fmt: skip
    batch = (TenantRequests("panels/batch", "batch", 4),)
    waits = replace(
        TENANT, queued=1, standing=standing, next_request="r1", in_engine_now=batch,
        engine_seats=4, promise=PromiseKept(2.0, 29, 9, 3),
    )  # fmt: skip
    lines = list(tenant_lines(waits))
    assert lines[1:6] == [
        "  next is request r1",
        "  place 1 of 12 in its tenant's queue; 2 of its tenant's run",
        "  nothing goes before it now; it starts as soon as the engine takes one more, unless one "
        "that goes first comes until then",
        "  by weight its tenant is due 25 % of what its tier gets, and more, free of debt, while "
        "others ask for less; it has 40 ms of the engine of credit, and goes first until that is "
        "used",
        "  in the engine now: 4 of 4 seats: panels/batch (batch) 4",
    ]
    assert not any("predicted" in line for line in lines)
    assert (
        "  promised: a first token within 2.0 s; in the last 60.0 s 9 of 29 were late and 3 refused"
    ) in lines
    behind = replace(waits, standing=replace(standing, hold=None))
    assert "  it starts with the next ones that the engine takes" in list(tenant_lines(behind))
    even = replace(waits, standing=replace(standing, tenant_debt=0.2))
    assert "it owes the others nothing" in "\n".join(tenant_lines(even))
