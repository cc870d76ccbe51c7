"""The forecast of a wait: a fluid model of the scheduler, checked against a fluid simulation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.scheduling.load_rates import MEMORY_SECONDS, OfferedRate, ServiceRate
from tidegate.scheduling.tier_loads import TierLoad
from tidegate.scheduling.waiting_time import Sharer, WaitForecast, predict

RATE = 1000.0


def wait(
    own: float,
    tier: TierLoad,
    *others: TierLoad,
    weight: int = 1,
    weighted: bool = False,
    after: float = 0.0,
) -> float:
    return predict(own, weight, tier, others, RATE, weighted).seconds(after)


def test_nothing_is_predicted_before_anything_was_measured() -> None:
    crowd = TierLoad(1, queued=1e9, active_weight=5)
    assert predict(1e9, 1, crowd, [crowd], None, weighted=False).seconds() == 0


def test_a_quiet_tenant_does_not_wait_for_its_neighbours_backlog() -> None:
    tier = TierLoad(1, queued=1e9, active_weight=101)
    assert wait(0, tier) == 0
    assert wait(100, tier, weight=100) == pytest.approx((100 + 1) / RATE)


def test_a_tenant_waits_for_its_own_queue_at_its_share() -> None:
    # Two of four parts are its own, and the other two are had by who has enough ...
    assert wait(1000, TierLoad(1, queued=9000, active_weight=4), weight=2) == pytest.approx(2.0)
    # ... and by who has not, what it has,
    assert wait(1000, TierLoad(1, queued=1300, active_weight=4), weight=2) == pytest.approx(1.3)
    # and what it is sent meanwhile: half of the tier's, until its share is full.
    sent = TierLoad(1, queued=1300, active_weight=4, offered_per_second=400)
    assert wait(1000, sent, weight=2) == pytest.approx(1.3 / 0.8, rel=0.01)
    flood = TierLoad(1, queued=1300, active_weight=4, offered_per_second=4000)
    assert wait(1000, flood, weight=2) == pytest.approx(2.0)


def test_a_debt_is_paid_by_what_the_neighbours_get() -> None:
    def owing(debt: float, queued: float, own: float = 0.0, weight: int = 1) -> float:
        tier = TierLoad(1, queued=queued + own, active_weight=4)
        return predict(own, weight, tier, [], RATE, False, debt=debt).seconds()

    # Each of three neighbours is given as much as it owes ...
    assert owing(1000, queued=1e9) == pytest.approx(3.0)
    assert owing(1000, queued=1e9, weight=2) == pytest.approx(1.0)
    # ... or what they have: nobody waits for a debt that is owed to none.
    assert owing(1000, queued=500) == pytest.approx(0.5)
    assert owing(1000, queued=0) == 0
    assert owing(1000, queued=1e9, own=500) == pytest.approx(0.5 + 4.5)


def test_it_waits_for_all_that_its_tier_must_yield() -> None:
    tier = TierLoad(1, queued=500, active_weight=1)
    above = TierLoad(2, queued=700, offered_per_second=400)
    below = TierLoad(0, queued=1e9, reserved_ratio=0.1)
    assert wait(500, tier, below) == pytest.approx(500 / 900)
    assert wait(500, tier, above) == pytest.approx(1200 / 600)
    assert wait(500, tier, above, below) == pytest.approx(1200 / 500)
    # A lower tier that has nothing takes nothing of what it has reserved.
    assert wait(500, tier, replace(below, queued=0.0)) == pytest.approx(0.5)
    # What keeps coming counts even when nothing of it waits; more than all is for ever.
    assert wait(500, tier, replace(above, queued=0.0)) == pytest.approx(500 / 600)
    assert wait(500, tier, replace(above, offered_per_second=1e4)) == inf
    # An equal tier takes turns.
    assert wait(500, tier, TierLoad(1, queued=9e9)) == pytest.approx(1.0)
    assert wait(500, tier, TierLoad(1, queued=100)) == pytest.approx(0.6)
    sent = TierLoad(1, queued=100, offered_per_second=400)
    assert wait(500, tier, sent) == pytest.approx(0.6 / 0.6, rel=0.01)


def test_a_reservation_bounds_the_wait_and_a_limit_prolongs_it() -> None:
    flood = TierLoad(2, queued=1e9, offered_per_second=2000)
    low = TierLoad(1, queued=500, active_weight=1, reserved_ratio=0.1)
    assert wait(500, low, flood) == pytest.approx(500 / 100)
    limited = TierLoad(1, queued=500, active_weight=1, limit_ratio=0.25)
    other = TierLoad(0, queued=1)
    assert wait(500, limited, other) == pytest.approx(500 / 250)
    assert wait(500, limited) == pytest.approx(0.5)


def test_weighted_tiers_share_the_excess() -> None:
    heavy = TierLoad(9, weight=3, queued=1e9, reserved_ratio=0.2)
    tier = TierLoad(1, weight=1, queued=600, active_weight=1)
    # A quarter of four fifths is its own.
    assert wait(600, tier, heavy, weighted=True) == pytest.approx(600 / 200)
    assert wait(600, tier, replace(heavy, queued=100.0), weighted=True) == pytest.approx(0.7)
    assert wait(0, tier, heavy, weighted=True) == 0
    # Its reservation and a quarter of seven tenths: 0.275 of all, against the other's 0.725.
    reserved = TierLoad(1, weight=1, queued=550, active_weight=1, reserved_ratio=0.1)
    assert wait(550, reserved, heavy, weighted=True) == pytest.approx(550 / 275)


@dataclass
class Fluid:
    """Tiers of tenants served as fluids, in small steps, to see how long one tenant's takes."""

    tiers: list[TierLoad]
    queues: list[list[tuple[float, int]]]
    """Of each tier: (queued, weight) of each tenant."""

    def seconds_until_served(self, tier: int, tenant: int, weighted: bool) -> float:
        queues = [[queued for queued, _ in tenants] for tenants in self.queues]
        step, elapsed = 0.002, 0.0
        while queues[tier][tenant] > 1e-12:
            left = [sum(each for each in queue if each > 1e-12) for queue in queues]
            shares = self._tier_shares(left, weighted)
            for index, share in enumerate(shares):
                self._serve(index, queues[index], share * RATE * step)
            elapsed += step
        return elapsed

    def _serve(self, index: int, queue: list[float], amount: float) -> None:
        while amount > 1e-12 and any(left > 1e-12 for left in queue):
            weights = [
                weight if left > 1e-12 else 0
                for left, (_, weight) in zip(queue, self.queues[index], strict=True)
            ]
            used = [min(q, amount * w / sum(weights)) for q, w in zip(queue, weights, strict=True)]
            for i, each in enumerate(used):
                queue[i] -= each
            amount -= sum(used)

    def _tier_shares(self, left: list[float], weighted: bool) -> list[float]:
        waiting = [i for i, amount in enumerate(left) if amount]
        shares = [self.tiers[i].reserved_ratio if i in waiting else 0.0 for i in range(len(left))]
        excess = 1 - sum(shares)
        if weighted:
            total = sum(self.tiers[i].weight for i in waiting)
            for i in waiting:
                shares[i] += excess * self.tiers[i].weight / total
        else:
            top = max(self.tiers[i].priority for i in waiting)
            equal = [i for i in waiting if self.tiers[i].priority == top]
            for i in equal:
                shares[i] += excess / len(equal)
        return shares


tenants = st.lists(
    st.tuples(st.sampled_from([50.0, 300.0, 2000.0]), st.sampled_from([1, 2, 5])),
    min_size=1,
    max_size=4,
)


@settings(deadline=None, max_examples=60)
@given(st.lists(tenants, min_size=1, max_size=3), st.permutations([0, 1, 2]), st.booleans())
def test_it_is_what_a_fluid_takes_when_nobody_sends_more(
    queues: list[list[tuple[float, int]]], priorities: list[int], weighted: bool
) -> None:
    tiers = [
        TierLoad(
            priority,
            weight=1 + priority,
            queued=sum(queued for queued, _ in mine),
            active_weight=sum(weight for _, weight in mine),
        )
        for mine, priority in zip(queues, priorities, strict=False)
    ]
    own, weight = queues[0][0]
    expected = wait(own, tiers[0], *tiers[1:], weight=weight, weighted=weighted)
    real = Fluid(tiers, queues).seconds_until_served(0, 0, weighted)
    # Never told a shorter wait than the fluid's; what others lack when their queue ends is not
    # given on in the forecast, which makes it longer, up to all that waits.
    assert real <= expected + 0.02
    assert expected <= sum(tier.queued for tier in tiers) / RATE + 1e-9


costs = st.floats(0, 1e5)
sharers = st.builds(Sharer, costs, st.floats(0, 2e3), st.floats(0, 50))
forecasts = st.builds(
    WaitForecast,
    own=costs,
    neighbours=sharers,
    tiers=st.lists(sharers, max_size=3).map(tuple),
    ahead=costs,
    arriving_rate=st.floats(0, 2e3),
    rate=st.floats(0, 1e3),
    reserved_rate=st.floats(0, 1e3),
    limit_rate=st.floats(1, 1e3) | st.just(inf),
    room=costs,
    room_ratio=st.floats(0, 1),
)


@given(forecasts, st.floats(0, 1e4), st.floats(0, 1e4))
def test_a_request_sent_later_never_waits_longer(
    forecast: WaitForecast, sooner: float, longer: float
) -> None:
    assert forecast.seconds(sooner + longer) <= forecast.seconds(sooner)
    assert forecast.seconds(sooner) >= 0


class FullEngine:
    """Ends and dispatches in the rhythm asked for, ten cost each."""

    def __init__(self) -> None:
        self.rate = ServiceRate()
        self.now = 0.0

    def fill(self, requests: int, gap: float = 1e-4) -> None:
        self.rate.waiting(self.now)
        for _ in range(requests):
            self.now += gap
            self.rate.dispatched(10, True, self.now)

    def exchange(self, requests: int, gap: float, at_once: int = 1) -> None:
        for _ in range(requests // at_once):
            self.now += gap
            for _ in range(at_once):
                self.rate.ended(10)
            for _ in range(at_once):
                self.rate.dispatched(10, True, self.now)


def test_the_rate_is_a_full_engines() -> None:
    engine = FullEngine()
    assert engine.rate.per_second(0) is None
    engine.fill(100)
    assert engine.rate.per_second(engine.now) is None
    engine.exchange(100, gap=0.1)
    assert engine.rate.per_second(engine.now) == pytest.approx(100, rel=0.02)
    # Several that end in one step make way for as many.
    engine.exchange(100, gap=0.4, at_once=4)
    assert engine.rate.per_second(engine.now) == pytest.approx(100, rel=0.05)
    # A queue that stands still is a slow one.
    assert engine.rate.per_second(engine.now + 3.2) == pytest.approx(50, rel=0.1)
    engine.rate.idle()
    assert engine.rate.per_second(engine.now + 1e6) == pytest.approx(100, rel=0.05)
    # How an idle engine fills changes nothing, and neither does time in which nothing waits.
    for _ in range(100):
        engine.rate.ended(10)
    engine.now += 1000
    engine.fill(100)
    assert engine.rate.per_second(engine.now) == pytest.approx(100, rel=0.05)
    engine.exchange(200, gap=0.05)
    assert engine.rate.per_second(engine.now) == pytest.approx(200, rel=0.05)


def test_what_is_dispatched_as_it_comes_is_no_measure_of_a_full_engine() -> None:
    engine = FullEngine()
    engine.fill(100)
    engine.exchange(100, gap=0.1)
    engine.rate.idle()
    holds = engine.rate.room + 1000
    for _ in range(95):
        engine.rate.ended(10)
    for _ in range(500):
        engine.now += 1.0
        engine.rate.ended(10)
        engine.rate.waiting(engine.now)
        engine.now += 1e-3
        engine.rate.dispatched(10, False, engine.now)
    assert engine.rate.per_second(engine.now) == pytest.approx(100, rel=0.05)
    assert engine.rate.room == pytest.approx(holds - 50)


def test_an_end_without_work_is_no_sign_of_a_fast_engine() -> None:
    engine = FullEngine()
    engine.fill(100)
    engine.exchange(100, gap=0.1)
    for _ in range(100):
        engine.now += 1e-3
        engine.rate.ended(10, served=False)
        engine.rate.dispatched(10, True, engine.now)
    assert engine.rate.per_second(engine.now) == pytest.approx(100, rel=0.05)


def test_a_wait_that_began_with_an_arrival_counts() -> None:
    engine = FullEngine()
    engine.fill(10)
    engine.rate.idle()
    for _ in range(50):
        engine.rate.waiting(engine.now)
        engine.now += 0.5
        engine.rate.ended(10)
        engine.rate.dispatched(10, False, engine.now)
        engine.now += 3.0
    assert engine.rate.per_second(engine.now) == pytest.approx(20)


def test_what_an_engine_has_held_it_takes_at_once() -> None:
    engine = FullEngine()
    assert engine.rate.room == 0
    engine.fill(100)
    assert engine.rate.room == 0
    engine.exchange(200, gap=0.1)
    assert engine.rate.room == pytest.approx(0)
    engine.rate.idle()
    for _ in range(60):
        engine.rate.ended(10)
    assert engine.rate.room == pytest.approx(600)
    # A burst that fills it says nothing about how much it holds ...
    engine.fill(30)
    assert engine.rate.room == pytest.approx(300)
    # ... but waiting for ends below that does: it holds less of what comes now.
    engine.exchange(300, gap=0.1)
    assert engine.rate.room == pytest.approx(0, abs=15)
    engine.rate.restart(0.0)
    assert engine.rate.room == pytest.approx(700, abs=15)


def test_a_burst_before_an_idle_engine_waits_for_its_prefills_only() -> None:
    tier = TierLoad(1, queued=600, active_weight=1)

    def burst(room: float) -> float:
        return predict(600, 1, tier, [], RATE, False, room, room_ratio=0.25).seconds()

    assert burst(0) == pytest.approx(0.6)
    assert burst(400) == pytest.approx((200 + 0.25 * 400) / RATE)
    assert burst(1e9) == pytest.approx(0.25 * 0.6)


def test_the_offered_rate_follows_what_is_sent_and_fades() -> None:
    offered = OfferedRate()
    assert offered.per_second(0) == 0
    for second in range(300):
        offered.arrived(50, second)
    assert offered.per_second(299) == pytest.approx(50, rel=0.05)
    assert offered.per_second(299 + MEMORY_SECONDS) == pytest.approx(50 / 2.718, rel=0.05)
