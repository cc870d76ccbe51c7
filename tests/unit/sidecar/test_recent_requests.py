"""What is remembered of requests, and that a noisy tenant pushes nobody else's out."""

from __future__ import annotations

from tidegate_sidecar.recent_requests import (
    MAX_DISPATCHES,
    MAX_ENDED,
    MAX_ENDED_OF_TENANT,
    Ended,
    RecentRequests,
)

from tidegate.scheduling.contracts import RecordKind, UsageRecord
from tidegate.scheduling.request import Request


def ended(
    name: str, tenant: str, *, came: float = 0.0, waits: float | None = None, takes: float = 0.0
) -> Ended:
    record = UsageRecord(1, RecordKind.USAGE, name, "completed", 0.0, takes, tenant=tenant)
    record.queued_seconds = waits
    return Ended(record, came, came + (waits or 0.0))


def test_a_noisy_tenant_pushes_out_its_own_alone() -> None:
    recent = RecentRequests()
    recent.ended(ended("quiet", "b"), known_tenant=True)
    for number in range(MAX_ENDED + 5):
        recent.ended(ended(f"r{number}", "a"), known_tenant=True)
    assert recent.find("quiet") is not None
    assert recent.find("r0") is None
    assert [record.id for record in recent.last_of("b")] == ["quiet"]
    newest = [record.id for record in recent.last_of("a")]
    assert (len(newest), newest[0]) == (MAX_ENDED_OF_TENANT, f"r{MAX_ENDED + 4}")
    assert len(recent.records()) == MAX_ENDED
    recent.keep_tenants({"a"})
    assert (recent.find("quiet"), list(recent.last_of("b"))) == (None, [])


def test_what_is_found_is_what_is_remembered() -> None:
    recent = RecentRequests()
    for number in range(2 * MAX_ENDED):
        recent.ended(ended(f"r{number}", f"t{number % 7}"), known_tenant=number % 7 < 5)
    kept = {record.id for record in recent.records()}
    kept |= {record.id for tenant in range(7) for record in recent.last_of(f"t{tenant}")}
    found = [f"r{number}" for number in range(2 * MAX_ENDED) if recent.find(f"r{number}")]
    assert set(found) == kept
    again = ended("r3", "t0")  # of an id that was served before
    recent.ended(again, known_tenant=True)
    for number in range(MAX_ENDED - 1):
        recent.ended(ended(f"n{number}", "t1"), known_tenant=True)
    assert recent.find("r3") is again


def test_a_request_of_no_known_tenant_makes_no_ring_of_its_own() -> None:
    recent = RecentRequests()
    recent.ended(ended("r", "forged"), known_tenant=False)
    assert list(recent.last_of("forged")) == []
    assert recent.find("r") is not None


def test_who_was_served_in_an_interval() -> None:
    recent = RecentRequests()
    for at, (name, tenant) in enumerate([("1", "a"), ("2", "b"), ("3", "a"), ("mine", "c")]):
        recent.dispatched(Request(name, tenant, 1, 1), float(at))
    recent.dispatched(Request("mine-1", "c", 1, 1), 3.0)
    assert recent.served_between(1.0, 3.0, "mine") == ({"b": 1, "a": 1}, True)
    for _ in range(MAX_DISPATCHES):
        recent.dispatched(Request("x", "d", 1, 1), 9.0)
    counts, complete = recent.served_between(1.0, 10.0, "mine")
    assert (dict(counts), complete) == ({"d": MAX_DISPATCHES}, False)


def test_who_was_there_when_a_request_came() -> None:
    recent = RecentRequests()
    recent.ended(ended("gone", "a", came=0.0, waits=0.0, takes=5.0), known_tenant=True)
    recent.ended(ended("later", "b", came=6.0, waits=0.0, takes=1.0), known_tenant=True)
    recent.ended(ended("ran", "a", came=1.0, waits=2.0, takes=9.0), known_tenant=True)
    recent.ended(ended("waited", "b", came=4.0, waits=7.0, takes=8.0), known_tenant=True)
    there, complete = recent.present_at(5.0)
    assert ({entry.record.id for entry in there}, complete) == ({"ran", "waited"}, True)
    for number in range(MAX_ENDED):
        recent.ended(ended(f"n{number}", "c", came=20.0, takes=1.0), known_tenant=True)
    there, complete = recent.present_at(5.0)
    assert ({entry.record.id for entry in there}, complete) == ({"ran", "waited"}, False)
    assert recent.present_at(21.0) == ([], True)


def test_how_a_tenants_requests_of_the_last_minute_ended() -> None:
    recent = RecentRequests()
    recent.ended(ended("old", "a", came=0.0, waits=0.0, takes=90.0), known_tenant=True)
    recent.ended(ended("slow", "a", came=95.0, waits=1.0, takes=7.0), known_tenant=True)
    recent.ended(ended("others", "b", came=100.0, waits=1.0, takes=9.0), known_tenant=True)
    recent.ended(ended("refused", "a", came=110.0), known_tenant=True)
    lately = recent.lately("a", 155.0, 60.0)
    assert (lately.seconds, lately.outcomes) == (60.0, {"completed": 2})
    assert lately.slowest is not None
    assert lately.slowest.id == "slow"
    for number in range(MAX_ENDED):
        recent.ended(ended(f"n{number}", "b", came=150.0), known_tenant=True)
    assert recent.lately("a", 155.0, 60.0) == (5.0, [], None)
