"""Whole runs in virtual time: deterministic, nobody lost, and each policy does what it says."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import repeat

import pytest

from tidegate.scheduling.contracts import (
    POLICY_VERSION,
    EngineLimits,
    KvPool,
    ModelPolicy,
    OnExceed,
    Policy,
    Preemption,
    PrefillLimits,
    PromptLimit,
    QueueLimits,
    TenantPolicy,
    TierPolicy,
)
from tidegate.scheduling.outcomes import Outcome
from tidegate.simulator.engine_model import CALIBRATIONS, Calibration, StepTimeModel
from tidegate.simulator.simulation.group import Group
from tidegate.simulator.simulation.node_policy import (
    node_policy,
    one_engine,
    split,
    splits_in_two,
)
from tidegate.simulator.simulation.plugin import PluginOptions
from tidegate.simulator.simulation.result import SimulationResult
from tidegate.simulator.simulation.run import Simulation
from tidegate.simulator.simulation.system import EngineGroup, Scheduling, System, simulate
from tidegate.workload.clients.client import (
    ClosedClient,
    OpenClient,
    Workload,
    at_times,
    constant,
    log_normal,
    poisson,
)
from tidegate.workload.clients.mixed_node import TIERS, MixedLoad, mixed_node

SMALL = MixedLoad(0.38, 0.88, 4, 20)
SLOW = Calibration(
    StepTimeModel(0.002, 0.010, 0.008, 5e-5), kv_capacity_tokens=6_400, sources={"*": "a test's"}
)


def run(
    scheduling: Scheduling, workload: Workload, seconds: float = 40.0, **options: object
) -> SimulationResult:
    system = one_engine(scheduling, node_policy(workload), **options)  # type: ignore[arg-type]
    return simulate(system, workload, seed=1, duration_seconds=seconds)


def two_tiers(**high: object) -> Policy:
    """A protected high tier and an evictable low one, with a pool each of an engine."""
    queue = QueueLimits(max_requests=10_000, max_wait_seconds=1_000.0)
    return Policy(
        version=POLICY_VERSION,
        generation=1,
        pool="a/pool",
        model=ModelPolicy("m"),
        tiers=(
            TierPolicy("high", 10, queue=queue, **high),  # type: ignore[arg-type]
            TierPolicy("low", 0, queue=queue, preemption=Preemption(evictable=True)),
        ),
        tenants=(TenantPolicy("h", "high"), TenantPolicy("l1", "low"), TenantPolicy("l2", "low")),
        engine=EngineLimits(max_num_seqs=16, max_num_batched_tokens=512),
        kv_pools=(KvPool("high", ("high",), 70), KvPool("low", ("low",), 30)),
    )


def small_engine(scheduling: Scheduling, policy: Policy) -> System:
    group = EngineGroup(
        "e", SLOW, 1, policy, scheduling, max_num_seqs=16, max_num_batched_tokens=512
    )
    return System(str(scheduling), (group,))


def flood(*late_high: float, low: int = 60) -> Workload:
    """Sixty low prompts at once, more than the KV cache holds; high ones at given times."""
    lengths = {"prompt": constant(600), "output": constant(80), "seed": 1}
    return Workload(
        "flood",
        ("high", "low"),
        (
            OpenClient("h", "high", ("h",), at_times(*late_high), **lengths),  # type: ignore[arg-type]
            OpenClient("l", "low", ("l1", "l2"), lambda _: repeat(0.0, low), **lengths),  # type: ignore[arg-type]
        ),
    )


@pytest.mark.parametrize("scheduling", list(Scheduling))
def test_the_same_seed_gives_the_same_run(scheduling: Scheduling) -> None:
    def once() -> SimulationResult:
        state = random.getstate()
        result = run(scheduling, mixed_node(SMALL, 5), seconds=20.0)
        assert random.getstate() == state
        return result

    first, second = once(), once()
    assert first.records == second.records
    assert first.samples == second.samples
    assert first.engines == second.engines
    assert first.completed_per_second() > 0


@pytest.mark.parametrize("scheduling", list(Scheduling))
def test_everybody_completes_once_when_there_is_time(scheduling: Scheduling) -> None:
    workload = flood(0.3, 0.6)
    result = simulate(
        small_engine(scheduling, two_tiers()), workload, seed=1, duration_seconds=300.0
    )
    assert len({record.id for record in result.records}) == len(result.records) == 62
    assert {record.outcome for record in result.records} == {Outcome.COMPLETED}
    assert all(record.output_tokens == 80 for record in result.records)
    for record in result.records:
        assert record.dispatched is not None
        assert record.first_token is not None
        assert record.finished is not None
        assert record.arrival <= record.dispatched < record.first_token <= record.finished
    assert result.engines.generation_tokens == 62 * 80


@pytest.mark.parametrize("scheduling", list(Scheduling))
def test_the_books_of_engine_and_planner_add_up_at_every_step(
    scheduling: Scheduling, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Group.step_ended

    def checked(self: Group, *arguments: object) -> object:
        self.engine.check()
        return ended(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Group, "step_ended", checked)
    workload = flood(0.3, 0.6, 0.9)
    simulate(small_engine(scheduling, two_tiers()), workload, seed=1, duration_seconds=20.0)


def test_a_closed_loop_keeps_its_requests_in_flight() -> None:
    result = run(Scheduling.FCFS, mixed_node(SMALL, 1).only("t3"))
    steady = [sample for sample in result.samples if sample.time > 31]
    assert {sample.queued["t3"] + sample.running["t3"] for sample in steady} == {20}


def test_samples_account_for_blocks_and_service() -> None:
    result = run(Scheduling.TIDEGATE, mixed_node(SMALL, 1))
    for sample in result.samples:
        assert sum(sample.kv_blocks.values()) + sample.kv_cached_blocks <= sample.kv_total_blocks
    last = result.samples[-1]
    assert sum(last.service_tokens.values()) == sum(last.tenant_service_tokens.values())
    computed = sum(
        record.prompt_tokens - record.cached_tokens + record.output_tokens
        for record in result.records
        if record.outcome is Outcome.COMPLETED and record.finished <= last.time
    )
    assert computed <= sum(last.service_tokens.values())
    for before, after in zip(result.samples, result.samples[1:], strict=False):
        for tier in TIERS:
            assert before.service_tokens[tier] <= after.service_tokens[tier]


def test_a_high_request_does_not_wait_for_a_flood() -> None:
    """The flood's prefill takes 4 s; behind it in arrival, before it in tier."""
    waits = {}
    for scheduling in Scheduling:
        workload = flood(0.5, low=45)
        system = small_engine(scheduling, two_tiers())
        result = simulate(system, workload, seed=1, duration_seconds=12.0)
        waits[scheduling] = result.measured("high")[0].ttft_seconds
    assert waits[Scheduling.TIDEGATE] < 0.15
    assert waits[Scheduling.FCFS] > 4.0
    assert waits[Scheduling.VTC] > waits[Scheduling.TIDEGATE]
    assert waits[Scheduling.SIDECAR] < waits[Scheduling.FCFS]


def test_the_plug_in_takes_what_was_lent_and_the_victims_go_on() -> None:
    """The low tier alone borrows the whole cache; the high tier's own comes back to it."""
    workload = flood(*(1.5 + 0.01 * number for number in range(6)))
    result = simulate(
        small_engine(Scheduling.TIDEGATE, two_tiers()),
        workload,
        seed=1,
        duration_seconds=120.0,
        max_output_tokens=100,
    )
    assert result.engines.preemptions > 0
    assert result.engines.recomputed_tokens > 0
    assert all(record.preemptions == 0 for record in result.measured("high"))
    assert {record.outcome for record in result.records} == {Outcome.COMPLETED}
    assert max(record.ttft_seconds for record in result.measured("high")) < 1.5


def test_without_the_plug_in_who_has_shown_nothing_makes_way_and_comes_back() -> None:
    workload = flood(*(1.5 + 0.01 * number for number in range(6)))
    system = small_engine(Scheduling.SIDECAR, two_tiers())
    result = simulate(system, workload, seed=1, duration_seconds=120.0, max_output_tokens=100)
    victims = [record for record in result.records if record.preemptions]
    assert {record.tier for record in victims} == {"low"}
    assert {record.outcome for record in result.records} == {Outcome.COMPLETED}
    assert sum(record.preemptions for record in victims) == result.engines.preemptions
    assert sum(r.recomputed_tokens for r in victims) == result.engines.recomputed_tokens > 0
    assert all(record.output_tokens == 80 for record in result.records)


@pytest.mark.parametrize("reserved_percent", [0, 50])
def test_without_the_plug_in_seats_stay_free_for_who_has_a_reservation(
    reserved_percent: int,
) -> None:
    arrivals = at_times(*(0.5 + 0.4 * number for number in range(20)))
    high = OpenClient("h", "high", ("h",), arrivals, constant(20), constant(20), 1)
    low = ClosedClient("l", "low", ("l1", "l2"), 40, constant(20), constant(200), 1)
    policy = replace(two_tiers(reserved_percent=reserved_percent), kv_pools=())
    result = simulate(
        small_engine(Scheduling.SIDECAR, policy),
        Workload("seats", ("high", "low"), (high, low)),
        seed=1,
        duration_seconds=10.0,
        max_output_tokens=200,
    )
    seated = max(sample.running["low"] for sample in result.samples if sample.time > 3)
    waited = sorted(record.ttft_seconds for record in result.measured("high"))[10]
    if reserved_percent:
        assert seated < 16
        assert waited < 0.1
    else:
        assert seated == 16
        assert waited > 0.4


@pytest.mark.parametrize("scheduling", [Scheduling.FCFS, Scheduling.SIDECAR, Scheduling.TIDEGATE])
def test_no_prompt_has_more_of_a_step_than_a_chunk(scheduling: Scheduling) -> None:
    policy = replace(two_tiers(), prefill=PrefillLimits(chunk_tokens=100))
    group = small_engine(scheduling, policy).groups[0].build()
    chunks: list[int] = []
    step_ended = group.step_ended

    def noted(step, rows, now):  # type: ignore[no-untyped-def]
        if step.running + step.waiting > 1:
            chunks.extend(tokens for _, tokens in step.rows)
        return step_ended(step, rows, now)

    group.step_ended = noted  # type: ignore[method-assign]
    Simulation([group], lambda tier: group, flood(0.3, low=5), 100).run(5.0)
    assert max(chunks) == 100


def test_vtc_serves_the_quiet_tenant_before_the_backlog_of_the_other() -> None:
    lengths = {"prompt": constant(300), "output": constant(60), "seed": 1}
    workload = Workload(
        "two tenants",
        ("low",),
        (
            OpenClient("many", "low", ("l1",), lambda _: repeat(0.0, 80), **lengths),  # type: ignore[arg-type]
            OpenClient("few", "low", ("l2",), at_times(0.5, 0.5), **lengths),  # type: ignore[arg-type]
        ),
    )
    policy = two_tiers()
    policy = replace(policy, kv_pools=(), tiers=policy.tiers[1:], tenants=policy.tenants[1:])

    def slowest_of_few(scheduling: Scheduling) -> float:
        system = small_engine(scheduling, policy)
        result = simulate(system, workload, seed=1, duration_seconds=120.0)
        return max(r.ttft_seconds for r in result.records if r.tenant == "l2")

    assert slowest_of_few(Scheduling.VTC) < slowest_of_few(Scheduling.FCFS) / 2
    assert slowest_of_few(Scheduling.TIDEGATE) < slowest_of_few(Scheduling.FCFS) / 2


def test_a_prompt_over_the_limit_is_refused_or_cut() -> None:
    def outcome(limit: PromptLimit) -> SimulationResult:
        policy = two_tiers(prompt_limit=limit)
        system = small_engine(Scheduling.TIDEGATE, policy)
        return simulate(system, flood(0.5, low=1), seed=1, duration_seconds=20.0)

    refused = outcome(PromptLimit(max_tokens=500, on_exceed=OnExceed.REJECT)).measured("high")[0]
    assert refused.outcome is Outcome.PROMPT_TOO_LONG
    assert refused.first_token is None
    cut = outcome(PromptLimit(max_tokens=500, on_exceed=OnExceed.TRUNCATE)).measured("high")[0]
    assert (cut.outcome, cut.prompt_tokens) == (Outcome.COMPLETED, 500)


def test_what_can_never_fit_is_refused_by_all() -> None:
    for scheduling in Scheduling:
        huge = OpenClient("h", "high", ("h",), at_times(0.1), constant(7_000), constant(10), 1)
        workload = Workload("huge", ("high", "low"), (huge,))
        system = small_engine(scheduling, two_tiers())
        result = simulate(system, workload, seed=1, duration_seconds=5.0)
        assert result.records[0].outcome is Outcome.ENGINE_REFUSED


def test_who_waits_too_long_in_our_queue_expires() -> None:
    policy = two_tiers()
    impatient = QueueLimits(max_requests=10_000, max_wait_seconds=1.0)
    tiers = (policy.tiers[0], replace(policy.tiers[1], queue=impatient))
    system = small_engine(Scheduling.TIDEGATE, replace(policy, tiers=tiers))
    result = simulate(system, flood(), seed=1, duration_seconds=60.0)
    outcomes = Counter(record.outcome for record in result.records)
    assert outcomes[Outcome.QUEUE_WAIT_EXCEEDED] > 0
    assert outcomes[Outcome.COMPLETED] > 0
    assert sum(outcomes.values()) == 60


def test_unfinished_requests_stay_in_the_records_as_misses() -> None:
    result = simulate(
        small_engine(Scheduling.FCFS, two_tiers()), flood(), seed=1, duration_seconds=0.5
    )
    waiting = [record for record in result.records if record.first_token is None]
    assert waiting
    assert all(record.outcome is None for record in waiting)
    assert all(record.ttft_seconds == float("inf") for record in waiting)


def test_tiers_go_to_their_own_engines() -> None:
    workload = mixed_node(SMALL, 1)
    system = split(Scheduling.FCFS, node_policy(workload), (("t0", "t1"), ("t2", "t3")))
    result = simulate(system, workload, seed=1, duration_seconds=20.0)
    groups = {(record.tier, record.group) for record in result.records}
    assert groups == {("t0", "t0+t1"), ("t1", "t0+t1"), ("t2", "t2+t3"), ("t3", "t2+t3")}
    assert result.gpus == 8
    half = System("half", system.groups[:1])
    with pytest.raises(ValueError, match="0 groups serve the tier 't2'"):
        simulate(half, mixed_node(SMALL, 1), seed=1, duration_seconds=1.0)


def test_every_split_is_tried_once() -> None:
    ways = splits_in_two(TIERS)
    assert len({frozenset(map(frozenset, way)) for way in ways}) == len(ways) == 7
    assert all(sorted((*first, *second)) == sorted(TIERS) for first, second in ways)


def test_a_step_time_cap_holds_while_others_decode() -> None:
    spans: list[tuple[float, int]] = []
    workload = mixed_node(SMALL, 1)
    # Nobody stands back, so that the cap binds the highest tier's prompts, too.
    options = PluginOptions(pause=False, step_seconds_cap=0.06)
    system = one_engine(Scheduling.TIDEGATE, node_policy(workload), plugin=options)
    group = system.groups[0].build()
    step_ended = group.step_ended

    def noted(step, rows, now):  # type: ignore[no-untyped-def]
        if step.decode_rows and step.prefill_tokens:
            spans.append((step.duration_seconds, step.prefill_tokens))
        return step_ended(step, rows, now)

    group.step_ended = noted  # type: ignore[method-assign]
    Simulation([group], lambda tier: group, workload, 1_024).run(30.0)
    floor_tokens = 0.3 * 8_192 / 8
    assert spans
    assert all(seconds <= 0.0601 or tokens <= floor_tokens + 1 for seconds, tokens in spans)


def test_speculation_shortens_the_time_per_token() -> None:
    from tidegate.simulator.engine_model import DRAFTS, Speculation

    workload = mixed_node(SMALL, 1).only("t0")
    plain = one_engine(Scheduling.FCFS, node_policy(workload))
    draft = Speculation.head(DRAFTS["chat_tp8"], 3)
    drafted = System("drafted", (replace(plain.groups[0], speculation=draft),))
    none_drafted = System(
        "none drafted", (replace(drafted.groups[0], drafted_tiers=frozenset({"t1"})),)
    )

    def per_token(system: System) -> float:
        work = mixed_node(SMALL, 1).only("t0")
        result = simulate(system, work, seed=1, duration_seconds=60.0)
        gaps = [r.seconds_per_output_token for r in result.records if r.seconds_per_output_token]
        return sum(gaps) / len(gaps)

    assert per_token(drafted) < 0.7 * per_token(plain)
    assert per_token(none_drafted) > per_token(plain)


def test_the_scheduler_forecasts_as_in_production() -> None:
    result = run(Scheduling.TIDEGATE, mixed_node(SMALL, 1), seconds=60.0)
    estimated = [record for record in result.records if record.est_finish is not None]
    assert len(estimated) > 50
    assert all(
        record.dispatched is not None and record.est_finish > record.dispatched  # type: ignore[operator]
        for record in estimated
    )
    assert result.notes["skew estimates"] > 20
    late = sum(count for name, count in result.notes.items() if name.startswith("skew flagged"))
    assert late < 0.5 * result.notes["skew estimates"]


def test_what_is_computed_again_is_told_with_its_cause() -> None:
    rows = []
    workload = flood(*(1.5 + 0.01 * number for number in range(6)))
    system = small_engine(Scheduling.TIDEGATE, two_tiers())
    group = system.groups[0].build()
    step_ended = group.step_ended

    def noted(step, done, now):  # type: ignore[no-untyped-def]
        assert sum(row.work.tokens + row.recomputed.tokens for row in done) == step.tokens
        rows.extend(done)
        return step_ended(step, done, now)

    group.step_ended = noted  # type: ignore[method-assign]
    Simulation([group], lambda tier: group, workload, 100).run(60.0)
    again = [row for row in rows if row.recomputed.tokens]
    assert sum(row.recomputed.tokens for row in again) == group.engine.totals.recomputed_tokens
    assert group.engine.totals.recomputed_tokens > 0
    assert {row.caused_by for row in again} == {"high"}


def test_an_idle_engine_takes_no_time() -> None:
    client = OpenClient("h", "high", ("h",), at_times(1.0, 11.0), constant(100), constant(5), 1)
    workload = Workload("idle", ("high", "low"), (client,))
    system = small_engine(Scheduling.FCFS, two_tiers())
    result = simulate(system, workload, seed=1, duration_seconds=30.0)
    assert result.engines.steps == 2 * 5
    assert result.engines.busy_seconds < 0.2
    assert [round(record.arrival) for record in result.records] == [1, 11]


def test_progress_is_told_about_every_minute() -> None:
    told: list[float] = []
    client = ClosedClient("h", "high", ("h",), 1, constant(50), constant(400), 1)
    workload = Workload("long", ("high", "low"), (client,))
    system = small_engine(Scheduling.FCFS, two_tiers())
    simulate(system, workload, seed=1, duration_seconds=130.0, progress=told.append)
    assert told == [0.0, 60.0, 120.0]


def test_the_test_calibration_runs_a_closed_and_an_open_client_together() -> None:
    clients = (
        OpenClient("h", "high", ("h",), poisson(20.0), log_normal(100, 0.5, 400), constant(10), 1),
        ClosedClient("l", "low", ("l1", "l2"), 4, constant(200), constant(20), 1),
    )
    policy = two_tiers()
    group = EngineGroup("e", CALIBRATIONS["test"], 1, policy, Scheduling.TIDEGATE)
    result = simulate(
        System("ours", (group,)),
        Workload("both", ("high", "low"), clients),
        seed=1,
        duration_seconds=5.0,
    )
    assert result.completed_per_second("high") > 15
    assert result.completed_per_second("low") > 15
