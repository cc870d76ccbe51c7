"""A scenario as requests: arrivals, lengths, traces, and that a seed determines all of it."""

import statistics
from itertools import islice, pairwise
from pathlib import Path

import pytest

from tidegate.scheduling.contracts import (
    SCENARIO_VERSION,
    Arrival,
    ArrivalProcess,
    Endpoint,
    LengthDistribution,
    LengthShape,
    Scenario,
    TenantLoad,
    Trace,
    TraceFormat,
)
from tidegate.workload import PlannedRequest, TraceError, Workload

CONSTANT_8 = LengthDistribution(LengthShape.CONSTANT, value=8)
POISSON = Arrival(ArrivalProcess.POISSON, rate_per_second=20.0)
CONSTANT = Arrival(ArrivalProcess.CONSTANT, rate_per_second=4.0)
BURST = Arrival(ArrivalProcess.BURST)
CLOSED = Arrival(ArrivalProcess.CLOSED, concurrency=3)


def tenant(
    arrival: Arrival,
    name: str = "a",
    *,
    prompts: LengthDistribution = CONSTANT_8,
    outputs: LengthDistribution = CONSTANT_8,
    start_seconds: float = 0.0,
    requests: int | None = None,
) -> TenantLoad:
    return TenantLoad(
        name=name,
        arrival=arrival,
        prompt_tokens=prompts,
        output_tokens=outputs,
        start_seconds=start_seconds,
        requests=requests,
    )


def workload(*tenants: TenantLoad, duration: float = 1000.0, seed: int = 7) -> Workload:
    return Workload(
        Scenario(
            version=SCENARIO_VERSION,
            name="test",
            model="m",
            duration_seconds=duration,
            tenants=tenants,
            seed=seed,
        )
    )


def requests(only: TenantLoad, duration: float = 1000.0, seed: int = 7) -> list[PlannedRequest]:
    return list(workload(only, duration=duration, seed=seed).requests(only))


def test_poisson_gaps_have_the_mean_and_the_spread_of_an_exponential() -> None:
    times = [r.at_seconds for r in requests(tenant(POISSON)) if r.at_seconds is not None]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert len(gaps) > 19_000
    assert statistics.mean(gaps) == pytest.approx(0.05, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(0.05, rel=0.05)
    assert sum(gap > 0.1 for gap in gaps) / len(gaps) == pytest.approx(0.1353, abs=0.01)


def test_constant_arrivals_are_evenly_spaced_from_the_start_to_the_duration() -> None:
    times = [r.at_seconds for r in requests(tenant(CONSTANT, start_seconds=2), duration=3)]
    assert times == [2.0, 2.25, 2.5, 2.75]


def test_a_burst_is_all_at_once_and_bounded_by_requests() -> None:
    times = [r.at_seconds for r in requests(tenant(BURST, start_seconds=1, requests=4))]
    assert times == [1, 1, 1, 1]


def test_a_closed_loop_has_no_times_and_cannot_be_merged_by_time() -> None:
    load = workload(tenant(CLOSED))
    assert [r.at_seconds for r in islice(load.requests(load.scenario.tenants[0]), 3)] == [None] * 3
    with pytest.raises(ValueError, match="closed loop"):
        load.stream()


def test_lengths_follow_their_distribution() -> None:
    uniform = LengthDistribution(LengthShape.UNIFORM, low=10, high=20)
    normal = LengthDistribution(LengthShape.LOG_NORMAL, median=100, sigma=1.0, high=5_000)
    drawn = requests(tenant(POISSON, prompts=uniform, outputs=normal))
    prompts = [r.prompt_tokens for r in drawn]
    outputs = sorted(r.output_tokens for r in drawn)
    assert (min(prompts), max(prompts)) == (10, 20)
    assert statistics.mean(prompts) == pytest.approx(15, rel=0.02)
    assert statistics.median(outputs) == pytest.approx(100, rel=0.05)
    assert outputs[int(0.8413 * len(outputs))] == pytest.approx(271.8, rel=0.05)
    assert outputs[0] >= 1
    assert outputs[-1] <= 5_000


def test_a_seed_determines_everything_and_another_changes_it() -> None:
    spread = LengthDistribution(LengthShape.UNIFORM, low=1, high=1000)
    a = tenant(POISSON, prompts=spread)
    assert requests(a, duration=10) == requests(a, duration=10)
    assert requests(a, duration=10) != requests(a, duration=10, seed=8)


def test_another_tenant_or_another_length_leaves_a_tenants_other_draws_alone() -> None:
    spread = LengthDistribution(LengthShape.UNIFORM, low=1, high=1000)
    alone = requests(tenant(POISSON, prompts=spread), duration=10)
    beside = workload(tenant(CONSTANT, "b"), tenant(POISSON, prompts=spread), duration=10)
    assert list(beside.requests(beside.scenario.tenants[1])) == alone
    longer = requests(tenant(POISSON, prompts=spread, outputs=spread), duration=10)
    assert [(r.at_seconds, r.prompt_tokens) for r in longer] == [
        (r.at_seconds, r.prompt_tokens) for r in alone
    ]


def test_the_stream_merges_tenants_by_time() -> None:
    load = workload(
        tenant(CONSTANT, "a"), tenant(BURST, "b", start_seconds=0.6, requests=2), duration=1
    )
    assert [(r.at_seconds, r.tenant) for r in load.stream()] == [
        (0.0, "a"), (0.25, "a"), (0.5, "a"), (0.6, "b"), (0.6, "b"), (0.75, "a"),
    ]  # fmt: skip


def replayed(tmp_path: Path, **trace: object) -> list[PlannedRequest]:
    lines = [
        f'{{"timestamp": {1000 * at}, "input_length": {length}, "output_length": 33,'
        f' "hash_ids": [{at}, 99]}}'
        for at, length in ((0, 512), (10, 700), (20, 1024), (30, 1))
    ]
    (tmp_path / "trace.jsonl").write_text("\n".join(lines))
    load = TenantLoad(
        name="t",
        arrival=Arrival(ArrivalProcess.TRACE),
        start_seconds=5.0,
        trace=Trace(TraceFormat.MOONCAKE_JSONL, path="trace.jsonl", **trace),  # type: ignore[arg-type]
    )
    scenario = Scenario(
        version=SCENARIO_VERSION, name="t", model="m", duration_seconds=1000, tenants=(load,)
    )
    made = Workload(scenario, tmp_path)
    made.check_sources()
    return list(made.requests(load))


def test_a_part_of_a_trace_is_replayed_faster_from_the_tenants_start(tmp_path: Path) -> None:
    part = replayed(tmp_path, start_seconds=10.0, length_seconds=20.0, speedup=2.0)
    assert [(r.at_seconds, r.prompt_tokens) for r in part] == [(5.0, 700), (10.0, 1024)]


def test_lengths_are_divided_rounding_up_and_shared_blocks_with_them(tmp_path: Path) -> None:
    divided = replayed(tmp_path, length_divisor=16)
    assert [r.prompt_tokens for r in divided] == [32, 44, 64, 1]
    assert {r.output_tokens for r in divided} == {3}
    assert {r.prefix.block_tokens for r in divided if r.prefix} == {32}


def test_a_part_without_requests_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no request for tenant 't' in the part"):
        replayed(tmp_path, start_seconds=100.0)


def test_a_relative_trace_is_found_beside_the_scenario_else_in_the_traces_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = TenantLoad(
        name="t",
        arrival=Arrival(ArrivalProcess.TRACE),
        endpoint=Endpoint.EMBEDDINGS,
        trace=Trace(TraceFormat.AZURE_CSV, path="sub/trace.csv"),
    )
    scenario = Scenario(
        version=SCENARIO_VERSION, name="t", model="m", duration_seconds=10, tenants=(load,)
    )
    made = Workload(scenario, tmp_path / "scenario")
    monkeypatch.delenv("TIDEGATE_TRACES", raising=False)
    with pytest.raises(TraceError, match="set TIDEGATE_TRACES"):
        made.check_sources()
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    for folder, tokens in (("traces", 1), ("scenario", 2)):
        path = tmp_path / folder / "sub" / "trace.csv"
        path.parent.mkdir(parents=True)
        path.write_text(f"{header}2023-11-16 18:15:46.0,{tokens},9\n")
        monkeypatch.setenv("TIDEGATE_TRACES", str(tmp_path / "traces"))
        (request,) = made.requests(load)
        assert (request.prompt_tokens, request.output_tokens) == (tokens, 0)
