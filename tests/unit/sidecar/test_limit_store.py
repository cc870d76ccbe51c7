"""The counters of rate limits on disk: whole, of one pool, and never a reason not to start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tidegate_sidecar.limit_store import FILE, LimitStore, read_states

from tidegate.scheduling.contracts import LimitWindow, RateLimit
from tidegate.scheduling.limit_window import Clocks
from tidegate.scheduling.rate_limit import RateLimiter, Reservation

NOW, UTC = 1_000.0, 1_900_000_000.0
LIMITS = [
    RateLimit("month", LimitWindow.MONTH, requests=500, tokens=10_000),
    RateLimit("minute", LimitWindow.MINUTE, requests=500),
]


def taken(limiter: RateLimiter, clocks: Clocks, tenant: str = "t") -> list[int]:
    """What is left of each limit in requests."""
    left = []
    for limit in LIMITS:
        requests, _ = limiter.room(tenant, [limit], clocks)
        assert requests is not None
        left.append(requests.limit - requests.remaining)
    return left


def used(tenants: int = 1, each: int = 3) -> RateLimiter:
    limiter = RateLimiter()
    for i in range(tenants):
        for _ in range(each):
            name = f"t{i}" if tenants > 1 else "t"
            reserved = limiter.reserve(name, LIMITS, 10, Clocks(NOW, UTC))
            assert isinstance(reserved, Reservation)
    return limiter


async def written(folder: Path, limiter: RateLimiter, changes: int = 1) -> LimitStore:
    store = LimitStore(folder, lambda: changes)
    store.attach(limiter, "ns/pool", Clocks(NOW, UTC))
    await store.save()
    return store


async def test_another_process_counts_on(tmp_path: Path) -> None:
    await written(tmp_path / "new", used())
    limiter = RateLimiter()
    later = Clocks(5.0, UTC + 90)  # another monotonic clock, and the minute is over
    LimitStore(tmp_path / "new", lambda: 0).attach(limiter, "ns/pool", later)
    assert taken(limiter, later) == [3, 0]


async def test_many_tenants_are_written_in_pieces(tmp_path: Path) -> None:
    await written(tmp_path, used(tenants=150, each=2))
    states = read_states((tmp_path / FILE).read_bytes(), "ns/pool")
    assert len(states) == 300
    months = [state for state in states if state.per is LimitWindow.MONTH]
    assert [state.slices[0].requests for state in months] == 150 * [2]
    assert len((tmp_path / FILE).read_text().splitlines()) == 1 + 5


async def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    store = await written(tmp_path, used())
    (tmp_path / FILE).unlink()
    await store.save()
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"\0\xff", b"[]", b'{"version": 2, "pool": "ns/pool"}\n[]', b'{"version": 1}\n[]'],
)
async def test_a_file_that_is_none_is_no_reason_not_to_start(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_bytes(content)
    limiter = RateLimiter()
    LimitStore(tmp_path, lambda: 0).attach(limiter, "ns/pool", Clocks(NOW, UTC))
    assert limiter.windows == {}
    assert "rate limits begin anew" in caplog.text


@pytest.mark.parametrize("spoilt", [{"per": "Week"}, {"slices": [{}]}, {"slices": 1}])
async def test_one_bad_counter_spoils_the_file(tmp_path: Path, spoilt: dict[str, object]) -> None:
    await written(tmp_path, used())
    head, line = (tmp_path / FILE).read_text().splitlines()
    members = json.loads(line)
    members[0] |= spoilt
    with pytest.raises(ValueError):  # noqa: PT011
        read_states(f"{head}\n{json.dumps(members)}".encode(), "ns/pool")


async def test_another_pools_counters_are_not_taken_over(tmp_path: Path) -> None:
    await written(tmp_path, used())
    with pytest.raises(ValueError, match="another pool"):
        read_states((tmp_path / FILE).read_bytes(), "ns/other")


async def test_a_disk_that_fails_is_counted_and_tried_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = await written(tmp_path / "file", used())
    assert store.failures == 1
    (tmp_path / "file").unlink()
    await store.save()
    assert (tmp_path / "file" / FILE).exists()
