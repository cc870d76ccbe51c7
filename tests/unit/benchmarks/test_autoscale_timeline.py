"""What `scripts/bench autoscale` makes of a run: figures of moments and requests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.load import Sample, SampleState

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
START = 1_000_000.0


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    import autoscale

    return autoscale


def sample(began: float, first: float | None, state: SampleState = SampleState.OK) -> Sample:
    """Due then; its first token so long after."""
    made = Sample("a", 0, began, 100, True, sent=began)
    made.first_token = None if first is None else began + first
    made.end(state, began + (first or 0.0) + 4.0, "" if state is SampleState.OK else "throttled")
    return made


def run_of(late: Callable[[float], bool], lost: Callable[[float], bool] = lambda t: False) -> Any:
    """Two requests a second; ``late`` ones are refused, ``lost`` ones break off."""
    samples = [
        sample(t, None, SampleState.FAILED)
        if lost(t)
        else sample(t, None if late(t) else 0.3, SampleState.REFUSED if late(t) else SampleState.OK)
        for t in (tick / 2 for tick in range(2160))
    ]
    scenario = SimpleNamespace(duration_seconds=1080.0)
    return SimpleNamespace(started_at=START, samples=samples, scenario=scenario)


def figures(bench: Any, run: Any, *seen: Any) -> dict[str, Any]:
    moments = bench.timeline([bench.Moment(START + at, event, "") for at, event in seen], run)
    return {one.name: one for one in bench.figures(moments, run, 280.0)}


def test_a_run_as_it_should_be(bench: Any) -> None:
    """Refused from 70 s to 20 s after the pod is Ready."""
    event = bench.Event
    run = run_of(lambda t: 70 <= t < 400)
    found = figures(
        bench, run, (350, event.FIRES), (360, event.GROWS), (5, event.READY), (380, event.READY),
        (690, event.CLEARED), (800, event.SHRINKS), (810, event.GONE),
    )  # fmt: skip
    values = {name: one.value for name, one in found.items()}
    assert values == {
        "promise kept before the surge": 100.0,
        "surge begins to alert fires": 290.0,
        "alert fires to operator adds pods": 10.0,
        "operator adds pods to pod Ready": 20.0,
        "pod Ready to promise kept again": 20.0,
        "promise kept again to alert cleared": 290.0,
        "steps up": 1,
        "steps down": 1,
        "steps up after the first down": 0,
        "requests cut off on the way down": 0,
        "requests refused on the way down": 0,
    }
    assert {one.met for one in found.values()} == {True, None}


def test_what_goes_wrong_is_a_figure_too(bench: Any) -> None:
    """One of the last requests breaks off, one is refused, and the group grows again."""
    event = bench.Event
    run = run_of(lambda t: 70 <= t < 520 or t == 810.0, lost=lambda t: t == 805.0)
    found = figures(
        bench, run, (350, event.FIRES), (360, event.GROWS), (380, event.READY),
        (690, event.CLEARED), (800, event.SHRINKS), (900, event.GROWS),
    )  # fmt: skip
    assert found["pod Ready to promise kept again"].value == 140.0
    assert not found["pod Ready to promise kept again"].met
    assert found["requests cut off on the way down"].value == 1
    assert found["requests cut off on the way down"].why == "failed throttled"
    assert found["requests refused on the way down"].value == 1
    assert found["steps up after the first down"].value == 1
    assert not found["steps up after the first down"].met


def test_a_run_in_which_nothing_happens_has_no_values_and_says_why(bench: Any) -> None:
    found = figures(bench, run_of(lambda t: t > 70))
    assert found["surge begins to alert fires"].value is None
    assert found["pod Ready to promise kept again"].why == "it never was"


def test_a_promise_is_kept_again_only_where_that_lasts(bench: Any) -> None:
    """One in two hundred may be late."""
    run = run_of(lambda t: t < 30 or 50 <= t < 100 or t == 130.0)
    assert bench.kept_again(run.samples, bench.PROMISE, 0.0) == pytest.approx(130.5)
    loose = bench.Promise(2.0, 0.99)
    assert bench.kept_again(run.samples, loose, 0.0) == pytest.approx(100.0)


def test_how_long_a_surge_takes_to_page(bench: Any) -> None:
    """Half an hour's page of 14.4: a total outage at the same rate takes 4.3 minutes at 99.5%."""
    same = {"surge_per_second": 1.0, "history_per_second": 1.0}
    assert bench.burn_seconds(budget=0.005, broken=1.0, **same) == pytest.approx(259.2)
    with pytest.raises(ValueError, match="never"):
        bench.burn_seconds(budget=0.005, broken=0.05, surge_per_second=9, history_per_second=1)


def test_a_cluster_that_does_not_run_is_told_with_what_starts_it(
    bench: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"), bench.local_cluster("never-made"):
        pytest.fail("there is none")
    said = capsys.readouterr().err
    assert said == "there is no cluster 'never-made': `tidegate up --name never-made` makes one\n"
