"""EngineTime: conserved, isolated from a neighbour's prefills, charged to who caused it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.step_work import together

from tidegate.scheduling.engine_time import EnginePace, RequestStep, split
from tidegate.scheduling.step_time_fit import StepTimeFit, StepWork, decode_work, prefill_work
from tidegate.simulator.engine_model.calibrations import H100_70B_TP8
from tidegate.simulator.engine_model.engine import Engine, EngineConfig
from tidegate.simulator.engine_model.request import EngineRequest

FIT = StepTimeFit()


def total_of(rows: list[RequestStep]) -> StepWork:
    return together(*[each for row in rows for each in (row.work, row.recomputed)])


works = st.one_of(
    st.builds(decode_work, st.integers(0, 200_000), st.integers(1, 8)),
    st.builds(prefill_work, st.integers(0, 9000), st.integers(0, 200_000), st.integers(0, 4000)),
)
steps = st.lists(
    st.builds(
        RequestStep,
        st.sampled_from("abcdef"),
        works,
        st.just(StepWork()) | st.builds(prefill_work, st.integers(1, 5000), st.integers(0, 5000)),
        st.none() | st.sampled_from(["t0", "t1"]),
    ),
    min_size=1,
    max_size=30,
)


@given(steps, st.floats(1e-5, 100))
def test_the_charges_of_a_step_are_its_time(rows: list[RequestStep], seconds: float) -> None:
    charges = split(FIT, seconds, rows)
    assert set(charges.by_request) == {row.request for row in rows}
    assert sum(charges.by_request.values()) + sum(charges.by_cause.values()) == pytest.approx(
        seconds
    )
    assert min([*charges.by_request.values(), *charges.by_cause.values()]) >= 0


@given(steps, st.floats(1e-5, 100))
def test_the_rows_of_a_step_are_what_the_pace_learns_from(
    rows: list[RequestStep], seconds: float
) -> None:
    learnt, told = EnginePace(2048), EnginePace(2048)
    assert learnt.observe_rows(rows, seconds) == split(learnt.fit, seconds, rows)
    decode_tokens = sum(row.work.tokens for row in rows if row.work.decode_rows)
    told.observe(total_of(rows), seconds, decode_tokens)
    assert learnt.fit.coefficients == pytest.approx(told.fit.coefficients)
    assert learnt.step_seconds == told.step_seconds


def test_a_step_that_computes_nothing_is_shared_evenly_and_one_of_nobody_is_an_error() -> None:
    rows = [RequestStep(name, StepWork()) for name in "ab"]
    assert split(FIT, 0.5, rows) == ({"a": 0.25, "b": 0.25}, {})
    with pytest.raises(ValueError, match="nobody"):
        split(FIT, 0.5, [])


def test_what_is_computed_again_is_charged_to_who_caused_it() -> None:
    prompt, again = prefill_work(100, 900), prefill_work(900, 0)
    decodes = [RequestStep(f"d{i}", decode_work(500)) for i in range(8)]
    alone = [*decodes, RequestStep("a", prompt)]
    seconds = FIT.seconds(8, 4000, 0.0, 8) + FIT.marginal_seconds(prompt)
    before = split(FIT, seconds, alone).by_request
    for cause in ("t0", None):
        rows = [*decodes, RequestStep("a", prompt, again, cause)]
        charges = split(FIT, seconds + FIT.marginal_seconds(again), rows)
        extra = FIT.marginal_seconds(again)
        if cause:
            assert charges.by_cause == {"t0": pytest.approx(extra)}
            assert charges.by_request == pytest.approx(before)
        else:
            assert charges.by_cause == {}
            assert charges.by_request["a"] == pytest.approx(before["a"] + extra)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 200_000), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(1, 9000), st.integers(0, 200_000)), max_size=4),
    st.floats(-0.1, 0.1),
)
def test_a_neighbours_prefills_change_a_decodes_charge_by_no_more_than_the_fit_errs(
    contexts: list[int], prompts: list[tuple[int, int]], error: float
) -> None:
    decodes = [RequestStep(f"d{i}", decode_work(context)) for i, context in enumerate(contexts)]
    prefills = [RequestStep(f"p{i}", prefill_work(*prompt)) for i, prompt in enumerate(prompts)]

    def charged(rows: list[RequestStep], seconds_over_fit: float) -> dict[str, float]:
        work = total_of(rows)
        seconds = FIT.coefficients[0] + FIT.marginal_seconds(work)
        return split(FIT, seconds * seconds_over_fit, rows).by_request

    alone, beside = charged(decodes, 1.0), charged([*decodes, *prefills], 1 + error)
    for name, seconds in alone.items():
        assert abs(beside[name] / seconds - 1) <= abs(error) + 1e-9


def test_decodes_pay_for_the_step_and_prefills_for_what_they_add() -> None:
    prompt = prefill_work(2048, 0)
    rows = [RequestStep("d", decode_work(100)), RequestStep("p", prompt)]
    seconds = FIT.seconds(2049, 100, prompt.attention_pairs, 1)
    charges = split(FIT, seconds, rows).by_request
    assert charges["p"] == pytest.approx(FIT.marginal_seconds(prompt))
    assert charges["d"] == pytest.approx(FIT.seconds(1, 100, 0.0, 1))
    # Without decodes it is the prefills' step, in proportion to their work.
    halves = [RequestStep(name, prefill_work(512, 0)) for name in "ab"]
    assert split(FIT, 0.1, halves).by_request == pytest.approx({"a": 0.05, "b": 0.05})


@dataclass
class Node:
    """A modelled engine whose steps are charged as they end."""

    engine: Engine = field(
        default_factory=lambda: Engine(EngineConfig(H100_70B_TP8.step_time, 70_000))
    )
    pace: EnginePace = field(default_factory=lambda: EnginePace(8192))
    now: float = 0.0
    busy_seconds: float = 0.0
    charged: dict[str, float] = field(default_factory=dict)
    added: int = 0

    def add(self, name: str, prompt: int, output: int) -> EngineRequest:
        self.added += 1
        request = EngineRequest(f"{name}-{self.added}", prompt, output)
        self.engine.add(request)
        return request

    def step(self) -> tuple[EngineRequest, ...]:
        """Those that finished."""
        result = self.engine.step(self.now)
        self.now = result.ends_at
        self.busy_seconds += result.duration_seconds
        rows = []
        for request, tokens in result.rows:
            before = request.computed_tokens - tokens
            prefills = before < request.prompt_tokens
            work = prefill_work(tokens, before) if prefills else decode_work(before + 1, tokens)
            rows.append(RequestStep(request.request_id, work))
        charges = self.pace.observe_rows(rows, result.duration_seconds)
        for name, seconds in charges.by_request.items():
            self.charged[name] = self.charged.get(name, 0.0) + seconds
        return result.finished

    def run(self, fixed_requests: int) -> list[float]:
        """What each of so many equal requests, one after the other, is charged beside the rest."""
        costs: list[float] = []
        fixed = self.add("fixed", 300, 200)
        while len(costs) < fixed_requests:
            for request in self.step():
                if request is fixed:
                    costs.append(self.charged[fixed.request_id])
                    if len(costs) < fixed_requests:
                        fixed = self.add("fixed", 300, 200)
                else:
                    self.again(request)
        return costs

    def again(self, request: EngineRequest) -> None:
        """The same once more, as a closed loop does."""
        name = request.request_id.split("-")[0]
        self.add(name, request.prompt_tokens, request.output_tokens_target)


@pytest.mark.parametrize("background", [0, 2, 12, 60])
def test_a_neighbours_long_prefills_change_a_requests_cost_by_less_than_ten_percent(
    background: int,
) -> None:
    node = Node()
    for i in range(background):
        node.add("background", 500, 120 + 7 * i)
    before = node.run(4)
    for _ in range(4):
        node.add("long", 8000, 1)
    after = node.run(4)
    mean = sum(before) / len(before)
    assert all(abs(cost / mean - 1) < 0.10 for cost in after), (before, after)
    assert sum(node.charged.values()) == pytest.approx(node.busy_seconds, rel=1e-9)
    # What it costs is also what was predicted of it at its dispatch.
    assert node.pace.engine_seconds(300, 200) == pytest.approx(after[-1], rel=0.1)


def test_predicted_times_are_those_of_the_engine_in_the_mix_that_it_runs() -> None:
    node = Node()
    for i in range(24):
        node.add("background", 1000, 150 + 9 * i)
    node.run(3)
    prompt, output = 6000, 100
    begun = node.now
    estimate_first = node.pace.first_token_seconds(prompt)
    estimate_decode = node.pace.decode_seconds(output)
    request = node.add("one", prompt, output)
    while request.finished_at is None:
        for finished in node.step():
            node.again(finished)
    assert request.first_token_at is not None
    assert request.first_token_at - begun == pytest.approx(estimate_first, rel=0.1)
    assert request.finished_at - request.first_token_at == pytest.approx(estimate_decode, rel=0.15)


def test_an_unmeasured_pace_says_so_and_a_prefill_takes_what_it_takes_alone() -> None:
    pace = EnginePace(2048)
    assert not pace.is_measured
    pace.observe(prefill_work(100, 0), 0.0, 0)
    assert not pace.is_measured
    c0 = pace.fit.coefficients[0]
    alone = pace.prefill_seconds(5000)
    assert alone == pytest.approx(3 * c0 + pace.fit.marginal_seconds(prefill_work(5000, 0)))
    pace.budget_tokens = 512
    assert pace.prefill_seconds(5000) == alone
    assert pace.first_token_seconds(5000) == pytest.approx(alone + 7 * c0)
    assert pace.prefill_seconds(5000, cached_tokens=4999) == pytest.approx(
        c0 + pace.fit.marginal_seconds(prefill_work(1, 4999))
    )
    assert pace.prefill_seconds(100, cached_tokens=100) > 0
    pace.observe(decode_work(100), 0.02, 1)
    assert pace.is_measured
    assert pace.step_seconds == 0.02


@settings(deadline=None, max_examples=50)
@given(
    st.integers(1, 200_000),
    st.integers(1, 10_000),
    st.floats(1, 6),
    st.integers(0, 100_000),
)
def test_more_to_do_never_takes_less_time(
    prompt: int, output: int, tokens_per_step: float, ahead: int
) -> None:
    pace = EnginePace(8192)
    pace.observe(StepWork(64, 0.0, 64, 64_000), 0.03, 64)
    assert pace.first_token_seconds(prompt + 1, 0, ahead) >= pace.first_token_seconds(prompt)
    assert pace.decode_seconds(output + 1, tokens_per_step) >= pace.decode_seconds(output, 6)
    cost = pace.engine_seconds(prompt, output, tokens_per_step=tokens_per_step)
    assert pace.engine_seconds(prompt + 1, output + 1, tokens_per_step=tokens_per_step) > cost > 0
    assert pace.engine_seconds(prompt, output, cached_tokens=prompt) <= pace.engine_seconds(
        prompt, output
    )
