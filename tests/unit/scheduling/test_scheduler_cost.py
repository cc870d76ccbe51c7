"""What a decision costs does not grow with tenants or queues."""

from __future__ import annotations

import time
from statistics import median
from types import SimpleNamespace

from tidegate.scheduling.request import Usage
from tidegate.scheduling.scheduler import Scheduler


def median_seconds(build: SimpleNamespace, tenants: int, queued: int) -> float:
    """Of submit, next and finish together."""
    names = [f"tenant{i}" for i in range(tenants)]
    tiers = [build.tier(f"t{i}", "Tokens", 100, priority=i, reserved_percent=5) for i in range(4)]
    rows = {name: {"tier": f"t{i % 4}", "weight": 1 + i % 5} for i, name in enumerate(names)}
    scheduler = Scheduler(build.policy(tiers, rows), 0.0)
    requests = [
        build.request(str(i), names[i % tenants], 50 + i % 900, 10 + i % 90)
        for i in range(queued + 1500)
    ]
    for request in requests[:queued]:
        assert scheduler.submit(request, 0.0) is None
    spent = []
    for request in requests[queued:]:
        started = time.perf_counter()
        scheduler.submit(request, 1.0)
        dispatched = scheduler.next(1.0)
        assert dispatched is not None
        scheduler.finish(dispatched.id, Usage(dispatched.prompt_tokens, 40), 1.0)
        spent.append(time.perf_counter() - started)
    return median(spent)


def test_ten_thousand_tenants_decide_as_fast_as_a_hundred(build: SimpleNamespace) -> None:
    """A scan of the tenants would make it a hundred times slower; the slack is for the machine."""
    few = median_seconds(build, 100, 1_000)
    many = median_seconds(build, 10_000, 50_000)
    assert many <= 5 * few
