"""The scheduler's invariants and bounds over thousands of drawn cases, each small and quick.

hypothesis looks for the odd sequence of calls (``test_scheduler_properties``); here many tenants,
tiers and sizes are drawn from fixed seeds, and the bounds are judged on the whole scheduler.
"""

from __future__ import annotations

import random
from types import SimpleNamespace

from tidegate.scheduling.contracts import BetweenTiers, QueueLimits, SchedulingMode
from tidegate.scheduling.deficit_round_robin import difference_bound
from tidegate.scheduling.request import Request, Usage
from tidegate.scheduling.scheduler import Scheduler

NO_LIMIT = QueueLimits(max_requests=1_000_000, max_wait_seconds=86_400.0)


def test_each_request_ends_once_and_no_place_stays_empty(build: SimpleNamespace) -> None:
    """1,000 cases: work-conserving, one end for each request, nothing below zero."""
    for seed in range(1_000):
        check_run(build, random.Random(seed), seed)


def check_run(build: SimpleNamespace, draw: random.Random, seed: int) -> None:
    names = [f"t{i}" for i in range(draw.randint(1, 4))]
    tiers = [
        build.tier(
            name,
            draw.choice(("Requests", "Tokens", "EngineTime")),
            draw.choice((1, 50, 2048)),
            priority=draw.randint(-2, 2),
            reserved_percent=draw.choice((0, 0, 20)),
            max_percent=draw.choice((100, 100, 5)),
            weight=draw.choice((1, 5, 1000)),
            max_in_flight=draw.choice((None, None, 1, 3)),
            queue=QueueLimits(max_requests=draw.choice((3, 1_000)), max_wait_seconds=5.0),
        )
        for name in names
    ]
    tenants = {
        f"tenant{i}": {"tier": draw.choice(names), "weight": draw.choice((1, 3, 1000))}
        for i in range(draw.randint(1, 6))
    }
    policy = build.policy(
        tiers,
        tenants,
        scheduling_mode=draw.choice(list(SchedulingMode)),
        between_tiers=draw.choice(list(BetweenTiers)),
    )
    scheduler = Scheduler(policy, 0.0, timed=draw.random() < 0.3)
    limits = {name: tier.max_in_flight or 1_000 for name, tier in zip(names, tiers, strict=True)}
    waiting: dict[str, str] = {}
    flying: dict[str, Request] = {}
    sent = ended = 0
    now = 0.0
    for _ in range(40):
        now += draw.choice((0.0, 0.01, 1.0))
        for gone, _ in scheduler.expire(now):
            del waiting[gone.id]
            ended += 1
        for _ in range(draw.randint(0, 3)):
            sent += 1
            request = build.request(
                str(sent), draw.choice(list(tenants)), draw.randint(0, 3_000), 50
            )
            if scheduler.submit(request, now) is None:
                waiting[request.id] = request.tenant
            else:
                ended += 1
        for _ in range(draw.randint(0, 2)):
            by_tenant = [request.tenant for request in flying.values()]
            could = any(
                by_tenant.count(tenant) < limits[tenants[tenant]["tier"]]
                for tenant in waiting.values()
            )
            dispatched = scheduler.next(now)
            assert (dispatched is not None) == could, seed
            if dispatched is not None:
                del waiting[dispatched.id]
                flying[dispatched.id] = dispatched
        for id in draw.sample(sorted(flying), draw.randint(0, len(flying))):
            scheduler.progress(id, draw.randint(0, 60), now)
            usage = draw.choice((None, Usage(10, draw.randint(0, 90))))
            scheduler.finish(id, usage, now)
            del flying[id]
            ended += 1
        assert (scheduler.queued(), scheduler.in_flight()) == (len(waiting), len(flying)), seed
        assert ended + len(waiting) + len(flying) == sent, seed
        rows = scheduler.tenant_snapshots(now)
        assert min(min(row.queued, row.running, row.service_tokens_total) for row in rows) >= 0


def test_served_cost_of_two_backlogged_tenants_differs_by_at_most_the_bound(
    build: SimpleNamespace,
) -> None:
    """600 cases: any weights, sizes and quanta, outputs that the predictions do not know."""
    for seed in range(600):
        check_bound(build, random.Random(seed), seed)


def check_bound(build: SimpleNamespace, draw: random.Random, seed: int) -> None:
    quantum = draw.choice((1, 128, 2048, 100_000))
    weights = {name: draw.choice((1, draw.randint(1, 9), 1000)) for name in "abc"}
    most = {name: draw.choice((20, 2_000, 50_000)) for name in weights}
    tier = build.tier(unit="Tokens", quantum=quantum, queue=NO_LIMIT)
    tenants = {name: {"weight": weight} for name, weight in weights.items()}
    scheduler = Scheduler(build.policy([tier], tenants), 0.0)
    for i in range(40):
        for name in weights:
            prompt = draw.randint(1, most[name])
            scheduler.submit(build.request(f"{name}{i}", name, prompt, most[name]), 0.0)
    # A charge is a prediction, then corrected to what it was: each may be prompt and output.
    bounds = {
        (i, j): difference_bound(quantum, (2 * most[i], weights[i]), (2 * most[j], weights[j]))
        for i in weights
        for j in weights
        if i < j
    }
    served = dict.fromkeys(weights, 0.0)
    history = [dict(served)]
    left = dict.fromkeys(weights, 40)
    while min(left.values()) and len(history) < 100:
        request = scheduler.next(0.0)
        assert request is not None
        left[request.tenant] -= 1
        output = draw.randint(0, most[request.tenant])
        scheduler.finish(request.id, Usage(request.prompt_tokens, output), 0.0)
        served[request.tenant] += (request.prompt_tokens + output) / weights[request.tenant]
        history.append(dict(served))
    for (i, j), bound in bounds.items():
        lead = [row[i] - row[j] for row in history]
        assert max(lead) - min(lead) <= bound * (1 + 1e-9), seed


def test_one_request_queued_of_any_size_gets_at_most_its_share_and_one_request(
    build: SimpleNamespace,
) -> None:
    """600 cases: whoever keeps one request queued, however large, and the others many."""
    for seed in range(600):
        draw = random.Random(seed)
        quantum = draw.choice((1, 300, 2048))
        size = draw.choice((quantum, 10 * quantum, 1_000_000))
        tier = build.tier(unit="Tokens", quantum=quantum, queue=NO_LIMIT)
        others = [f"o{i}" for i in range(draw.randint(1, 3))]
        scheduler = Scheduler(
            build.policy([tier], dict.fromkeys(["one", *others], "standard")), 0.0
        )
        for i in range(50):
            for name in others:
                tokens = draw.randint(1, draw.choice((10, 3_000)))
                scheduler.submit(build.request(f"{name}-{i}", name, tokens, 0), 0.0)
        scheduler.submit(build.request("one0", "one", size, 0), 0.0)
        served = dict.fromkeys(["one", *others], 0)
        for number in range(1, 50):
            request = scheduler.next(0.0)
            assert request is not None
            served[request.tenant] += request.prompt_tokens
            if request.tenant == "one":
                scheduler.submit(build.request(f"one{number}", "one", size, 0), 0.0)
            scheduler.finish(request.id, Usage(request.prompt_tokens, 0), 0.0)
            assert served["one"] <= sum(served.values()) / len(served) + size, seed
