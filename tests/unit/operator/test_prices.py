"""What calls cost, how busy engines were with whom, and which promises were kept."""

from __future__ import annotations

from typing import Any

import pytest
from support.custom_resources import pool
from tidegate_operator import api
from tidegate_operator.api.common import parse
from tidegate_operator.figures import Reading, pool_figures
from tidegate_operator.figures_status import pool_status
from tidegate_operator.prices import pod_hour_price, price_per_1000_calls

from tidegate.scheduling.contracts import SidecarStatus, SloMetric, SloStatus, TierStatus


def priced(price: str | None = "2.50", **engine: Any) -> float | None:
    spec: dict[str, Any] = {"engine": {"image": "i"} | engine}
    if price is not None:
        spec["price"] = {"gpuHour": price}
    parsed = parse(api.ServingPool, pool(**spec))
    assert isinstance(parsed, api.ServingPool)
    return pod_hour_price(parsed)


def test_a_pod_costs_what_its_gpus_do() -> None:
    assert priced(None) is None
    assert priced() == 2.5
    assert priced(parallelism={"tensor": 4}) == 10.0
    assert priced(parallelism={"tensor": 2}, args=["--pipeline-parallel-size=3"]) == 15.0
    asked = {"limits": {"nvidia.com/gpu": 8}}
    assert priced(parallelism={"tensor": 4}, resources=asked) == 20.0


@pytest.mark.parametrize(
    ("milliseconds", "calls", "price"),
    [
        (36_000.0, 10, "10"),
        (36_000.0, 1000, "0.1"),
        (1.0, 1, "0.0028"),
        (123_456.0, 7, "49"),
        (50e6, 7, "20000"),
        (0.0, 5, "0"),
        (36_000.0, 0, None),
    ],
)
def test_calls_cost_the_engine_time_that_they_took(
    milliseconds: float, calls: int, price: str | None
) -> None:
    """10 an hour: 36 s are 0.10."""
    assert price_per_1000_calls(10.0, milliseconds, calls) == price
    assert price_per_1000_calls(None, milliseconds, calls) is None


def tier(name: str, calls: int, milliseconds: float, *slo: tuple[int, int, int]) -> TierStatus:
    return TierStatus(
        name,
        requests_total={"completed": calls, "throttled": 3},
        engine_time_ms_total=milliseconds,
        slo=tuple(SloStatus(SloMetric.END_TO_END, *counts) for counts in slo),
    )


def reading(at: float, *tiers: TierStatus) -> Reading:
    return Reading(at, 1e9 + at, SidecarStatus(1, "a/b", 1.0, 1, tiers=tiers))


def test_tiers_share_the_time_of_all_engines() -> None:
    """Two pods over a minute: 48 of 120 s for one tier, 12 for the other, the rest is idle."""
    before = (tier("paid", 100, 5e6, (53, 50, 2)), tier("free", 7, 1e6))
    after = (tier("paid", 140, 5e6 + 24_000, (93, 87, 4)), tier("free", 9, 1e6 + 6_000))
    pods = [[reading(0, *before), reading(60, *after)] for _ in range(2)]
    figures = pool_figures(pods, 60.0)
    figures.pod_hour = 6.0
    status = pool_status(figures, ["paid", "free"])
    paid, free = status["tiers"]
    assert (paid["busyPercent"], free["busyPercent"]) == (40, 10)
    assert (paid["pricePer1000Calls"], free["pricePer1000Calls"]) == ("1", "5")
    assert paid["objectives"] == [
        {"metric": "EndToEnd", "requests": 80, "keptPercent": 92, "refused": 4, "late": 2}
    ]
    assert "objectives" not in free


def test_an_idle_tier_keeps_nothing_busy_and_has_no_price() -> None:
    pods = [[reading(0, tier("paid", 100, 5e6)), reading(60, tier("paid", 100, 5e6))]]
    status = pool_status(pool_figures(pods, 60.0), ["paid"])
    (entry,) = status["tiers"]
    assert entry["busyPercent"] == 0
    assert not entry.keys() & {"pricePer1000Calls", "objectives", "sharePercent"}
