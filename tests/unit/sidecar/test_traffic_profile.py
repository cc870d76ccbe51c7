"""Samples of slow traffic: what is in one, and how many are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tidegate_sidecar import traffic_profile
from tidegate_sidecar.traffic_profile import AFTER_SECONDS, MAX_SAMPLES, TenantNames, TrafficProfile

from tidegate.scheduling.contracts import RecordKind, UsageRecord


def record(
    name: str, arrived_at: float, tenant: str = "team/a", seconds: float = 1.0
) -> UsageRecord:
    return UsageRecord(
        version=1,
        kind=RecordKind.USAGE,
        id=name,
        outcome="completed",
        arrived_at=arrived_at,
        duration_seconds=seconds,
        tenant=tenant,
    )


def rows(content: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in content.splitlines()]


def test_a_sample_is_the_minute_before_the_minute_after_and_what_runs() -> None:
    profile = TrafficProfile(TenantNames.NAMED)
    for at in (900.0, 950.0, 990.0):
        profile.ended(record(f"at-{at:.0f}", at))
    profile.begin("t0", 4.0, now=10.0, wall=1_000.0)
    profile.begin("t1", 9.0, now=20.0, wall=1_010.0)  # one at a time
    assert not profile.due(10.0 + AFTER_SECONDS - 1)
    profile.ended(record("long", 940.0, seconds=100.0))
    assert profile.due(10.0 + AFTER_SECONDS)
    sample = profile.finish([record("running", 1_055.0)])
    assert [row["id"] for row in rows(sample.content)] == ["long", "at-950", "at-990", "running"]
    assert (sample.tier, sample.at, sample.rows) == ("t0", 1_000.0, 4)
    assert sample.name == "traffic-19700101T001640Z-t0-1.jsonl"
    assert profile.samples_total == {"t0": 1}
    assert not profile.due(1_000.0)


def test_a_tenant_is_one_hash_in_all_samples_and_another_elsewhere() -> None:
    seen = []
    for profile in (TrafficProfile(), TrafficProfile()):
        for at in (100.0, 200.0):
            profile.ended(record("r", at))
            profile.begin("t0", 4.0, now=at, wall=at)
            seen.append({row["tenant"] for row in rows(profile.finish([]).content)})
    assert seen[0] == seen[1] != seen[2] == seen[3]
    assert "team/a" not in seen[0] | seen[2]


def test_only_the_last_samples_are_kept_in_memory_and_on_disk(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("not a sample")
    profile = TrafficProfile(folder=tmp_path)
    for number in range(MAX_SAMPLES + 3):
        profile.begin("t0", 4.0, now=0.0, wall=float(number))
        profile.store(profile.finish([]))
    kept = {sample.name for sample in profile.samples}
    assert len(kept) == MAX_SAMPLES
    assert {path.name for path in tmp_path.iterdir()} == kept | {other.name}


def test_more_than_a_sample_holds_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = TrafficProfile()
    profile._last = traffic_profile.deque(maxlen=5)
    monkeypatch.setattr(traffic_profile, "MAX_ROWS", 5)
    profile.begin("t0", 4.0, now=0.0, wall=0.0)
    for number in range(6):
        profile.ended(record(f"r{number}", float(number)))
    sample = profile.finish([])
    assert (sample.rows, sample.truncated) == (5, True)


def test_a_folder_that_cannot_be_written_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    profile = TrafficProfile(folder=tmp_path / "file")
    profile.begin("t0", 4.0, now=0.0, wall=0.0)
    profile.store(profile.finish([]))
    assert "was not stored" in caplog.text
    assert len(profile.samples) == 1
