"""One gate for all tiers, or one for each beside the plug-in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidegate.scheduling.contracts import Policy, SchedulingMode, SloMetric, SloObjective, decode
from tidegate.scheduling.gates import Gates
from tidegate.scheduling.request import Request


def policy(tiers: dict[str, str], **members: Any) -> Policy:
    """Of these tenants, each in its tier."""
    return decode(
        Policy,
        {
            "version": 1,
            "generation": 1,
            "pool": "a/b",
            "model": {"name": "m"},
            "tiers": [{"name": name} for name in sorted(set(tiers.values()))],
            "tenants": [{"name": name, "tier": tier} for name, tier in tiers.items()],
            "engine": {"max_num_batched_tokens": 512, "max_num_seqs": 8},
            **members,
        },
    )


def request(number: int, tenant: str, prompt_tokens: int = 400) -> Request:
    return Request(f"r{number}", tenant, prompt_tokens, 50)


def fill(gates: Gates, tenant: str, first: int = 0) -> list[Request]:
    """Dispatch until its tier is closed."""
    sent = []
    tier = "low" if tenant == "b" else "high"
    while (closed := gates.closed(1.0)) is not None and tier not in closed:
        sent.append(request(first + len(sent), tenant))
        gates.dispatched(sent[-1])
    return sent


TWO = {"a": "high", "b": "low"}


def test_without_a_plug_in_one_tier_closes_the_gate_for_all() -> None:
    gates = Gates(policy(TWO), by_tier=False)
    assert gates.closed(1.0) == []
    sent = fill(gates, "b")
    assert gates.closed(1.0) is None
    assert gates.not_started == gates.in_flight == len(sent)
    gates.ended(sent[0], 1.0)
    assert gates.closed(1.0) == []


def test_with_one_what_stands_in_a_tier_leaves_the_others_open() -> None:
    gates = Gates(policy(TWO), by_tier=True)
    low = fill(gates, "b")
    assert gates.closed(1.0) == ["low"]
    high = fill(gates, "a", first=100)
    assert gates.closed(1.0) is None
    gates.started(high[0])
    for one in (*low, *high):
        gates.ended(one, 2.0)
    assert (gates.in_flight, gates.closed(1.0)) == (0, [])


def test_a_cached_prompt_takes_less_room_beside_a_plug_in() -> None:
    gates = Gates(policy(TWO), by_tier=True)
    few = len(fill(gates, "b"))
    gates = Gates(policy(TWO), by_tier=True)
    for number in range(few + 2):
        one = request(number, "b")
        one.expected_cached_tokens = 390
        gates.dispatched(one)
    gates.step({"low": 1})
    assert gates.closed(1.0) in ([], ["low"])
    assert gates.not_started == few + 2


def test_a_tier_that_moves_or_goes_takes_nobody_along() -> None:
    gates = Gates(policy(TWO), by_tier=True)
    sent = fill(gates, "b")
    gates.apply_policy(policy({"a": "high", "b": "high"}))
    assert gates.closed(1.0) == []
    assert gates.not_started == len(sent)
    for one in sent:
        gates.ended(one, 2.0)
    assert gates.not_started == 0


def test_what_a_tier_holds_of_the_kv_cache_closes_its_gate_alone() -> None:
    gates = Gates(policy(TWO), by_tier=True)
    for number, tenant in enumerate("ab"):
        one = request(number, tenant)
        gates.dispatched(one)
        gates.started(one)
    gates.kv_held({"low": 1.0, "high": 0.2, "gone": 0.5})
    gates.step({})
    assert gates.closed(1.0) == ["low"]
    gates.engine_metrics(2, 0, 1.0)  # of the whole engine: says nothing of one tier
    assert gates.closed(1.0) == ["low"]


def test_prefills_are_held_back_only_for_a_promise_and_not_beside_a_plug_in() -> None:
    plain = policy(TWO, engine={"max_num_batched_tokens": 2000, "max_num_seqs": 64})
    promise = (SloObjective(SloMetric.INTER_TOKEN_LATENCY, 0.05),)
    high, low = plain.tiers
    promised = replace(plain, tiers=(replace(high, slo_objectives=promise), low))
    counts = []
    for by_tier, in_force in ((False, plain), (False, promised), (True, promised)):
        gates = Gates(in_force, by_tier=by_tier)
        running = request(0, "b", 10)
        gates.dispatched(running)
        gates.started(running)
        counts.append(len(fill(gates, "b", first=1)))
    assert counts[1] < counts[0]
    assert counts[2] == counts[0]


def test_the_last_seats_are_left_to_who_has_a_reservation() -> None:
    plain = policy(TWO)
    high, low = plain.tiers
    reserved = replace(plain, tiers=(replace(high, priority=1, reserved_percent=50), low))
    gates = Gates(reserved, by_tier=False)

    def send(number: int, tenant: str) -> Request:
        one = request(number, tenant, 10)
        gates.arrived(one, 0.0)
        gates.dispatched(one)
        gates.started(one)
        return one

    batch = [send(number, "b") for number in range(6)]
    assert gates.closed(1.0) == []  # nobody with a reservation sends anything
    send(10, "a")
    gates.ended(batch.pop(), 1.0)
    batch.append(send(11, "b"))
    assert gates.in_flight == 7
    assert gates.closed(1.0) == ["low"]
    gates.apply_policy(replace(reserved, scheduling_mode=SchedulingMode.FIRST_COME_FIRST_SERVED))
    assert gates.closed(1.0) == []
    assert Gates(reserved, by_tier=True).held_back(1.0) == []
