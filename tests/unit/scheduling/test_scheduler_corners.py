"""The corner cases of fair order, defined by what they must give."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tidegate.scheduling.contracts import (
    EngineLimits,
    Fairness,
    FairnessUnit,
    ModelPolicy,
    QueueLimits,
    SchedulingMode,
    Task,
    TierPolicy,
)
from tidegate.scheduling.deficit_round_robin import TURNS, difference_bound
from tidegate.scheduling.request import Usage
from tidegate.scheduling.scheduler import Scheduler

NO_LIMIT = QueueLimits(max_requests=1_000_000, max_wait_seconds=86_400.0)


class Bench:
    """A scheduler of one tier, unit Tokens, whose requests end as they were predicted."""

    def __init__(self, build: SimpleNamespace, quantum: int, **weights: int) -> None:
        tier = build.tier(unit="Tokens", quantum=quantum, queue=NO_LIMIT)
        tenants = {name: {"weight": weight} for name, weight in weights.items()}
        self.scheduler = Scheduler(build.policy([tier], tenants), 0.0)
        self._build = build
        self.weights = weights
        self.served = dict.fromkeys(weights, 0.0)
        """Tokens over weight."""
        self.number = 0

    def send(self, tenant: str, tokens: int, count: int = 1) -> None:
        for _ in range(count):
            self.number += 1
            # No output: what is predicted is what it costs.
            request = self._build.request(f"{tenant}{self.number}", tenant, tokens, 0)
            assert self.scheduler.submit(request, 0.0) is None

    def run(self, count: int = 1) -> str:
        """So many dispatches; the tenant of the last."""
        tenant = ""
        for _ in range(count):
            request = self.scheduler.next(1.0)
            assert request is not None
            tenant = request.tenant
            self.served[tenant] += request.prompt_tokens / self.weights[tenant]
            self.scheduler.finish(request.id, Usage(request.prompt_tokens, 0), 1.0)
        return tenant


def test_one_tenant_is_never_held_up(build: SimpleNamespace) -> None:
    """Whatever it asks for, in any order: with nobody else, all of it goes in order."""
    bench = Bench(build, 10, only=3)
    for tokens in (1, 1_000_000, 1, 0, 50_000, 7):
        bench.send("only", tokens)
    order = [bench.scheduler.next(0.0) for _ in range(6)]
    assert [request.id for request in order if request] == [f"only{i + 1}" for i in range(6)]


@pytest.mark.parametrize("quantum", [1, 200, 2048])
def test_weights_1_and_1000(build: SimpleNamespace, quantum: int) -> None:
    """The shares hold, and the small one is served within the bound, not at the end."""
    bench = Bench(build, quantum, small=1, large=1000)
    bench.send("small", 200, 20)
    bench.send("large", 200, 8_000)
    bound = difference_bound(quantum, (200, 1), (200, 1000))
    for _ in range(7_500):
        bench.run()
        assert abs(bench.served["small"] - bench.served["large"]) <= bound
    assert bench.served["small"] > 0


def test_a_request_of_many_quanta_is_paid_for_afterwards(build: SimpleNamespace) -> None:
    bench = Bench(build, 100, huge=1, small=1)
    bench.send("huge", 100_000, 2)
    bench.send("small", 100, 2_500)
    assert bench.run() == "huge"
    order = [bench.run() for _ in range(1_001)]
    assert order.index("huge") in (999, 1000), "once the other has had as much"


def test_who_joins_in_mid_round_waits_for_one_turn_at_most(build: SimpleNamespace) -> None:
    """Nor does it get more than a quantum before those who were there."""
    quantum = 1_000
    bench = Bench(build, quantum, a=1, b=1, late=1)
    bench.send("a", 100, 500)
    bench.send("b", 100, 500)
    for dispatched in range(3, 200, 29):
        bench.run(dispatched)
        before = dict(bench.served)
        bench.send("late", 100, 60)
        first = next(i for i in range(12) if bench.run() == "late")
        assert first <= quantum // 100
        bench.run(40)
        gained = {name: bench.served[name] - before[name] for name in before}
        assert gained["late"] <= min(gained["a"], gained["b"]) + 2 * quantum + 100
        while bench.scheduler.tenant_snapshots(0.0)[2].queued:
            bench.run()
        bench.send("a", 100, 250)
        bench.send("b", 100, 250)


def test_others_leaving_and_joining_change_nothing_between_two_that_stay(
    build: SimpleNamespace,
) -> None:
    draw = random.Random(7)
    for case in range(40):
        quantum = draw.choice((1, 300, 2048))
        weights = {name: draw.choice((1, 2, 9)) for name in ("a", "b", "c", "d", "e")}
        bench = Bench(build, quantum, **weights)
        for name in ("a", "b"):
            for _ in range(120):
                bench.send(name, draw.randint(1, 3_000))
        bound = difference_bound(quantum, (3_000, weights["a"]), (3_000, weights["b"]))
        leads = [0.0]
        rows = bench.scheduler.tenant_snapshots
        while min(row.queued for row in rows(0.0)[:2]):
            if draw.random() < 0.3:
                bench.send(draw.choice("cde"), draw.randint(1, 9_000), draw.randint(1, 3))
            bench.run()
            leads.append(bench.served["a"] - bench.served["b"])
        assert max(leads) - min(leads) <= bound * (1 + 1e-9), case


def test_a_square_wave_of_20_short_and_1_huge_gains_at_most_one_quantum(
    build: SimpleNamespace,
) -> None:
    """Coming and going wins a credit of one quantum in all, not one each time: at any moment the
    wave was served at most a quantum more than who never stopped, and the request in its turn."""
    for quantum in (100, 2048):
        bench = Bench(build, quantum, wave=1, steady=1)
        bench.send("steady", 100, 10_000)
        for wave in range(20):
            bench.send("wave", 100, 20)
            bench.send("wave", 30_000)
            left = 21
            while left:
                if bench.run() == "steady":
                    continue
                left -= 1
                lead = bench.served["wave"] - bench.served["steady"]
                assert lead <= quantum + (100 if left else 30_000)
            bench.run(50 * (wave % 5))
        assert bench.served["wave"] >= 20 * 32_000, "and it gets all that it asked for"


def test_put_back_twice_in_arrival_order(build: SimpleNamespace) -> None:
    mode = SchedulingMode.FIRST_COME_FIRST_SERVED
    policy = build.policy(tenants={"a": {}, "b": {}}, scheduling_mode=mode)
    scheduler = Scheduler(policy, 0.0)
    for id, tenant in (("b0", "b"), ("a0", "a"), ("a1", "a"), ("b1", "b")):
        scheduler.submit(build.request(id, tenant), 0.0)
    for _ in range(3):
        first, second = scheduler.next(1.0), scheduler.next(1.0)
        assert first is not None
        assert second is not None
        assert (first.id, second.id) == ("b0", "a0")
        assert scheduler.requeue("a0", 1.0) is None
        assert scheduler.requeue("b0", 1.0) is None
    order = [scheduler.next(2.0) for _ in range(4)]
    assert [request.id for request in order if request] == ["b0", "a0", "a1", "b1"]


def test_a_weight_taken_away_takes_the_credit_that_it_gave(build: SimpleNamespace) -> None:
    """A credit of a quantum at weight 1000 is not a thousand at weight 1."""
    bench = Bench(build, 2_000, a=1000, b=1)
    bench.send("b", 100, 100)
    bench.run(50)
    bench.send("a", 100, 5_000)
    tier = build.tier(unit="Tokens", quantum=2_000, queue=NO_LIMIT)
    bench.scheduler.apply_policy(build.policy([tier], {"a": {}, "b": {}}, generation=2), 0.0)
    bench.weights["a"] = 1
    while bench.run() == "a":
        pass
    assert bench.served["a"] <= 2_000 + 2 * 2_000 / TURNS


def test_a_debt_does_not_outlive_its_unit(build: SimpleNamespace) -> None:
    """100,000 tokens are not 100,000 requests."""
    bench = Bench(build, 100, a=1, b=1)
    bench.send("b", 100, 50)
    bench.send("a", 100_000)
    bench.send("a", 100, 20)
    while bench.run() != "a":
        pass
    assert {bench.run() for _ in range(10)} == {"b"}
    tier = build.tier(unit="Requests", queue=NO_LIMIT)
    bench.scheduler.apply_policy(build.policy([tier], {"a": {}, "b": {}}, generation=2), 0.0)
    assert sorted(bench.run() for _ in range(10)) == ["a"] * 5 + ["b"] * 5


@pytest.mark.parametrize("unit", ["Tokens", "Requests"])
def test_a_debt_moves_to_another_tier_of_its_unit(build: SimpleNamespace, unit: str) -> None:
    tiers = [
        build.tier("old", "Tokens", 100, priority=1, queue=NO_LIMIT),
        build.tier("new", unit, queue=NO_LIMIT),
    ]
    tenants = {"a": "old", "b": "new", "c": "old"}
    scheduler = Scheduler(build.policy(tiers, tenants), 0.0)

    def send(tenant: str, tokens: int, count: int) -> None:
        for i in range(count):
            request = build.request(f"{tenant}-{tokens}-{i}", tenant, tokens, 0)
            assert scheduler.submit(request, 0.0) is None

    def served(count: int) -> list[str]:
        tenants = []
        for _ in range(count):
            request = scheduler.next(0.0)
            assert request is not None
            scheduler.finish(request.id, Usage(request.prompt_tokens, 0), 0.0)
            tenants.append(request.tenant)
        return sorted(tenants)

    send("c", 100, 5)
    send("a", 100_000, 1)
    send("a", 100, 20)
    while served(1) != ["a"]:
        pass
    send("b", 100, 20)
    scheduler.apply_policy(build.policy(tiers, tenants | {"a": "new"}, generation=2), 0.0)
    while scheduler.tier_snapshots()[0].queued:
        assert served(1) == ["c"]
    assert served(10) == (["b"] * 10 if unit == "Tokens" else ["a"] * 5 + ["b"] * 5)


@pytest.mark.parametrize("unit", [FairnessUnit.TOKENS, FairnessUnit.ENGINE_TIME])
@pytest.mark.parametrize(
    ("task", "batch_tokens", "set_quantum", "quantum"),
    [
        (Task.EMBED, 8_192, None, 8_192),
        (Task.EMBED, None, None, 2_048),
        (Task.GENERATE, 8_192, None, 2_048),
        (Task.EMBED, 8_192, 4_096, 4_096),
    ],
)
def test_the_quantum_of_a_pool_that_embeds_is_a_full_batch(
    build: SimpleNamespace,
    task: Task,
    batch_tokens: int | None,
    set_quantum: int | None,
    quantum: int,
    unit: FairnessUnit,
) -> None:
    """Who returns has a credit of one quantum: so many of its texts go before others' lists."""
    if set_quantum is not None and unit is FairnessUnit.ENGINE_TIME:
        quantum = batch_tokens or 0  # one in milliseconds, which nobody counts here
    tier = TierPolicy("standard", fairness=Fairness(unit, set_quantum), queue=NO_LIMIT)
    policy = replace(
        build.policy([tier], {"lists": "standard", "texts": "standard"}),
        model=ModelPolicy("model", task),
        engine=EngineLimits(max_num_batched_tokens=batch_tokens),
    )
    scheduler = Scheduler(policy, 0.0)

    def send(tenant: str, tokens: int, count: int) -> None:
        for number in range(count):
            request = build.request(f"{tenant}{number}", tenant, tokens, 0)
            assert scheduler.submit(request, 0.0) is None

    def run() -> str:
        request = scheduler.next(0.0)
        assert request is not None
        scheduler.finish(request.id, Usage(request.prompt_tokens, 0), 0.0)
        return str(request.tenant)

    send("lists", 8_192, 10)
    assert {run() for _ in range(5)} == {"lists"}
    send("texts", 64, 500)
    first = 0
    while run() == "texts":
        first += 1
    assert quantum <= 64 * first <= 1.2 * quantum + 64
