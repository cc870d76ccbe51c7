"""Fair shares over several pods, in virtual time: production schedulers that tell each other."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.scheduling.contracts import FairnessUnit
from tidegate.scheduling.peer_service import CARRIED_QUANTA, Given

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from replicas_fleet import (
    INTERVAL_SECONDS,
    OTHER,
    OUTPUT_TOKENS,
    PINNED,
    QUANTUM,
    SPREAD,
    Fleet,
    places,
    widest_gap,
)


@pytest.mark.parametrize("pods", [2, 3])
@given(seed=st.integers(0, 999), longest=st.sampled_from([300, 1_000, 1_500]))
@settings(max_examples=4, deadline=None)
def test_one_pinned_to_a_pod_gets_what_one_gets_that_spreads_over_all(
    pods: int, seed: int, longest: int
) -> None:
    fleet = Fleet(places(pods), seed, longest)
    fleet.connect(*range(pods))
    served = list(fleet.run(10))
    for one, other in ((PINNED, SPREAD), (PINNED, OTHER), (SPREAD, OTHER)):
        assert widest_gap(served, one, other) <= 1.5 * fleet.bound
    apart = Fleet(places(pods), seed, longest)
    assert widest_gap(list(apart.run(10)), PINNED, SPREAD) > 5 * fleet.bound


def test_what_an_idle_pod_gives_costs_nothing_on_the_busy_one() -> None:
    waits = {}
    for name, reached in {
        "spread": [{PINNED, SPREAD}, {SPREAD}],
        "unspread": [{PINNED, SPREAD}, set()],
    }.items():
        fleet = Fleet(reached)
        fleet.connect(0, 1)
        for _ in fleet.run(20):
            pass
        waits[name] = mean(fleet.pods[0].waits)
    assert waits["spread"] <= 1.05 * waits["unspread"]


def test_cut_off_and_joining_pods_are_fair_each_by_itself() -> None:
    everywhere = [{SPREAD, OTHER} for _ in range(3)]
    fleet = Fleet(everywhere, longest=600)
    fleet.connect(0, 1)
    served = list(fleet.run(5))
    fleet.connect(2)  # it joins
    served += fleet.run(5)
    fleet.cut()
    served += fleet.run(60)
    fleet.connect(0, 1, 2)
    served += fleet.run(5)
    assert widest_gap(served, SPREAD, OTHER) <= 3 * fleet.bound


def test_after_an_outage_nothing_of_it_is_repaid() -> None:
    fleet = Fleet(places(2))
    fleet.connect(0, 1)
    list(fleet.run(5))
    fleet.cut()
    assert widest_gap(list(fleet.run(60)), PINNED, SPREAD) > 10 * fleet.bound
    fleet.connect(0, 1)
    assert widest_gap(list(fleet.run(20)), PINNED, SPREAD) <= 1.5 * fleet.bound


def test_a_late_or_wrong_report_costs_some_quanta_at_most() -> None:
    fleet = Fleet([{PINNED, SPREAD}])
    fleet.connect(0)
    list(fleet.run(2))
    peers = fleet.pods[0].scheduler.peers
    peers.heard([Given(SPREAD, FairnessUnit.TOKENS, 1e9), Given(PINNED, FairnessUnit.REQUESTS, 9)])
    peers.heard([Given("nobody", FairnessUnit.TOKENS, 5.0)])
    gap = widest_gap(list(fleet.run(20)), PINNED, SPREAD)
    forgiven = (CARRIED_QUANTA + 1) * QUANTUM
    assert forgiven - fleet.bound < gap <= forgiven + fleet.bound


def test_who_is_idle_here_owes_nothing_here() -> None:
    fleet = Fleet([{PINNED, OTHER}])
    fleet.connect(0)
    list(fleet.run(2))
    for _ in range(50):
        fleet.pods[0].scheduler.peers.heard([Given(SPREAD, FairnessUnit.TOKENS, 1_000.0)])
        list(fleet.run(INTERVAL_SECONDS))
    fleet.submit(0, SPREAD, 100)
    list(fleet.run(1))
    assert fleet.pods[0].served[SPREAD] == 100 + OUTPUT_TOKENS
