"""The soak's judge finds each kind of breach, and nothing where there is none."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tidegate.scheduling.contracts import LimitWindow, RateLimit, RecordKind, UsageRecord
from tidegate.scheduling.outcomes import Outcome

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
LIMIT = RateLimit(name="minute", per=LimitWindow.MINUTE, requests=3, tokens=100)


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("soak_judge")


def record(number: int, outcome: Outcome = Outcome.COMPLETED, **members: Any) -> UsageRecord:
    return replace(
        UsageRecord(
            version=1,
            kind=RecordKind.USAGE,
            id=f"r{number}",
            outcome=outcome,
            arrived_at=float(number),
            duration_seconds=1.0,
            tenant="a/b",
            prompt_tokens=10,
            output_tokens=5,
        ),
        **members,
    )


def view(judge: ModuleType, number: int, status: int = 200, **members: Any) -> Any:
    whole = members.pop("whole", status == 200)
    return judge.View(
        "a/b", "key", float(number), number + 1.0, f"r{number}", status, whole, **members
    )


def counted(records: list[UsageRecord]) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    for one in records:
        counts[one.tenant, one.outcome] = counts.get((one.tenant, one.outcome), 0) + 1
    return counts


def test_what_agrees_is_no_breach(judge: ModuleType) -> None:
    records = [
        record(1),
        record(2, Outcome.RATE_LIMITED),
        record(3, Outcome.CLIENT_CLOSED),
        record(4, Outcome.ENGINE_FAILED),
    ]
    views = [
        view(judge, 1, tokens=(10, 5)),
        view(judge, 2, 429),
        judge.View("a/b", "key", 3.0, 4.0, left=True),  # left before it was told an id
        view(judge, 4, whole=False),
    ]
    assert judge.outcome_breaches(views, records, counted(records)) == []
    down = [judge.Span(4.5, 4.6)]
    assert judge.unexplained(views, records, down, {}) == []


@pytest.mark.parametrize(
    ("records", "views", "breach"),
    [
        ([1, 1], [1, 2], "r1: 2 records"),
        ([1], [1, 2], "r2: no record"),
        ([1, 2, 3], [1, 2], "3 records of 2 requests"),
    ],
)
def test_records_are_one_for_each(
    judge: ModuleType, records: list[int], views: list[int], breach: str
) -> None:
    kept = [record(number) for number in records]
    seen = [view(judge, number) for number in views]
    assert any(breach in said for said in judge.outcome_breaches(seen, kept, counted(kept)))


@pytest.mark.parametrize(
    ("outcome", "status", "whole"),
    [
        (Outcome.CLIENT_CLOSED, 200, True),
        (Outcome.COMPLETED, 502, False),
        (Outcome.RATE_LIMITED, 200, False),
        (Outcome.RATE_LIMITED, 503, False),
    ],
)
def test_a_client_that_saw_another_end(
    judge: ModuleType, outcome: Outcome, status: int, whole: bool
) -> None:
    kept = [record(1, outcome)]
    seen = [view(judge, 1, status, whole=whole)]
    assert len(judge.outcome_breaches(seen, kept, counted(kept))) == 1


def test_tokens_and_counters_must_agree(judge: ModuleType) -> None:
    kept = [record(1)]
    assert judge.outcome_breaches([view(judge, 1, tokens=(10, 6))], kept, counted(kept))
    assert judge.outcome_breaches([view(judge, 1)], kept, {("a/b", "completed"): 2})


def test_what_has_no_cause(judge: ModuleType) -> None:
    failed, refused = record(1, Outcome.NO_ENGINE), record(2, Outcome.UNAUTHENTICATED)
    views = [view(judge, 1, 503), view(judge, 2, 401), view(judge, 9, fault="it broke")]
    assert len(judge.unexplained(views, [failed, refused, record(9)], [], {})) == 3
    revoked = {"key": 2.5}
    down = [judge.Span(0.0, 0.5)]
    assert len(judge.unexplained(views, [failed, refused, record(9)], down, revoked)) == 1
    broken = [view(judge, 1, broke="reset", whole=False)]
    assert len(judge.unexplained(broken, [record(1)], [], {})) == 1
    assert judge.unexplained(broken, [record(1)], [judge.Span(1.5, 1.6)], {}) == []
    too_early = [judge.Span(0.0, 1.0 - judge.RECOVERY_SECONDS - 0.1)]
    assert len(judge.unexplained(views[:1], [failed], too_early, {})) == 1


def test_limits(judge: ModuleType) -> None:
    """Tokens may exceed by what was in flight when the last was admitted, and by no more."""
    within = [record(number, prompt_tokens=40, output_tokens=10) for number in (0, 20)]
    assert judge.limit_use(within, LIMIT) == judge.LimitUse(100, 0.0, 2)
    apart = [record(number, prompt_tokens=80, output_tokens=10) for number in (0, 59)]
    assert judge.limit_use(apart, LIMIT) == judge.LimitUse(90, 0.0, 1)
    flying = [
        record(0, prompt_tokens=40, output_tokens=60, max_output_tokens=60, duration_seconds=9.0),
        record(5, prompt_tokens=5, output_tokens=15, max_output_tokens=15),
    ]
    assert judge.limit_use(flying, LIMIT) == judge.LimitUse(120, 20 / 120, 2)
    over = [replace(flying[0], duration_seconds=1.0, output_tokens=80), flying[1]]
    assert judge.limit_use(over, LIMIT).excess_of_in_flight == 2.0  # the last one alone was flying
    refused = [record(number, prompt_tokens=0, output_tokens=0) for number in range(9)]
    assert judge.limit_use(refused, LIMIT) == judge.LimitUse()
