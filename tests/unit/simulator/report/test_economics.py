"""What tiers hold, use and pay: source 000's figures, and that the bill adds up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.simulator.engine_model import StepTimeModel
from tidegate.simulator.report.economics import Capacity, TierUse, economics
from tidegate.simulator.report.engine_time import added_seconds, engine_seconds
from tidegate.simulator.simulation.result import RequestRecord

MakeRecord = Callable[..., RequestRecord]


def test_source_000_reserves_seventy_percent_for_fifteen_of_the_traffic() -> None:
    tiers = [TierUse("T0", 150, 150, 12.0), TierUse("rest", 850, 850, 48.0)]
    capacity = Capacity(gpus=8, seconds=3600, utilisation=0.6, gpu_hour_price=2.0)
    table, unallocated = economics(tiers, {"T0": 70}, capacity)
    t0, rest = table["T0"], table["rest"]
    assert t0.traffic_percent == pytest.approx(15.0)
    assert t0.reserved_for_traffic_percent == pytest.approx(10.5)
    assert t0.used_percent == pytest.approx(12.0)
    assert t0.reservation_used_percent == pytest.approx(100 * 12 / 70)
    assert t0.lent_percent == pytest.approx(58.0)
    # 0.7 x 8 GPU hours at 2.0 for 150 calls, whatever it used of them; 0.12 x 8 by use.
    assert t0.price_per_1000_calls_paid == pytest.approx(1000 * 0.7 * 16 / 150)
    assert t0.price_per_1000_calls_used == pytest.approx(1000 * 0.12 * 16 / 150)
    assert rest.price_per_1000_calls_paid == pytest.approx(1000 * 0.3 * 16 / 850)
    assert rest.price_per_1000_calls_used == pytest.approx(1000 * 0.48 * 16 / 850)
    assert rest.reservation_used_percent is None
    assert unallocated == 0.0


def test_without_a_price_or_an_answer_there_is_none_per_call() -> None:
    capacity = Capacity(8, 3600, 0.5, None)
    table, _ = economics([TierUse("T0", 10, 10, 1.0)], {}, capacity)
    assert table["T0"].price_per_1000_calls_paid is None
    priced = Capacity(8, 3600, 0.5, 1.0)
    table, _ = economics([TierUse("T0", 10, 0, 1.0)], {}, priced)
    assert table["T0"].price_per_1000_calls_used is None


def test_what_nobody_reserved_and_nobody_used_is_nobodys() -> None:
    capacity = Capacity(8, 3600, 0.1, 1.0)
    table, unallocated = economics([TierUse("T0", 10, 10, 1.0)], {"T0": 40}, capacity)
    assert table["T0"].gpu_hours_paid == pytest.approx(3.2)
    assert unallocated == pytest.approx(4.8)


def test_nothing_ran() -> None:
    table, unallocated = economics([TierUse("T0", 0, 0, 0.0)], {}, Capacity(8, 3600, 0.0, 1.0))
    assert table["T0"].traffic_percent == table["T0"].used_percent == 0.0
    assert unallocated == pytest.approx(8.0)


@settings(max_examples=80, deadline=None)
@given(
    uses=st.lists(st.floats(0, 100), min_size=1, max_size=5),
    shares=st.lists(st.integers(0, 20), min_size=5, max_size=5),
    utilisation=st.floats(0, 1),
)
def test_the_bill_adds_up(uses: list[float], shares: list[int], utilisation: float) -> None:
    tiers = [TierUse(f"T{i}", 10, 10, seconds) for i, seconds in enumerate(uses)]
    reserved = {tier.name: share for tier, share in zip(tiers, shares, strict=False)}
    capacity = Capacity(4, 1800, utilisation, 3.0)
    table, unallocated = economics(tiers, reserved, capacity)
    assert sum(one.gpu_hours_paid for one in table.values()) + unallocated == pytest.approx(2.0)
    busy = 2.0 * utilisation if sum(uses) > 0 else 0.0
    assert sum(one.gpu_hours_used for one in table.values()) == pytest.approx(busy)
    for tier in tiers:
        costs = table[tier.name]
        assert costs.gpu_hours_paid >= 2.0 * reserved[tier.name] / 100 - 1e-9
        assert costs.lent_percent >= -1e-9


def test_output_costs_what_its_steps_take(answered: MakeRecord, step_time: StepTimeModel) -> None:
    long_prompt = answered("T2", "a", 0, 1, 1, prompt_tokens=1000, output_tokens=1)
    long_output = answered("T3", "b", 0, 1, 1, prompt_tokens=1, output_tokens=1000)
    assert added_seconds(long_prompt, step_time) == pytest.approx(1.001)
    assert added_seconds(long_output, step_time) == pytest.approx(1.001)
    times = engine_seconds([long_prompt, long_output], step_time, 12.0)
    assert sum(times.values()) == pytest.approx(12.0)
    # Ten more seconds went by in 1,003 steps; T3 was in 1,001 of them.
    assert times["T3"] == pytest.approx(1.001 + (12.0 - 2.002) * 1001 / 1003)


def test_cached_tokens_cost_nothing_and_recomputed_ones_again(
    answered: MakeRecord, step_time: StepTimeModel
) -> None:
    cached = answered("T0", "a", 0, 1, 1, cached_tokens=90)
    again = answered("T0", "a", 0, 1, 1, recomputed_tokens=100)
    plain = answered("T0", "a", 0, 1, 1)
    assert added_seconds(plain, step_time) - added_seconds(cached, step_time) == pytest.approx(0.09)
    assert added_seconds(again, step_time) - added_seconds(plain, step_time) == pytest.approx(0.1)


def test_attention_over_a_cached_context_is_paid_for(answered: MakeRecord) -> None:
    model = StepTimeModel(0, 0, 0, 0, per_kv_token_seconds=0.0, per_pair_seconds=1.0)
    turn = answered("T0", "a", 0, 1, 1, prompt_tokens=100, cached_tokens=80)
    assert added_seconds(turn, model) == pytest.approx(20 * (80 + 20 / 2))


def test_at_the_memory_bound_floor_shares_stay_and_the_sum_holds(
    answered: MakeRecord, step_time: StepTimeModel
) -> None:
    records = [answered("T0", "a", 0, 1, 1), answered("T1", "b", 0, 1, 1, prompt_tokens=211)]
    times = engine_seconds(records, step_time, 0.1)
    assert times["T1"] == pytest.approx(2 * times["T0"])
    assert sum(times.values()) == pytest.approx(0.1)
