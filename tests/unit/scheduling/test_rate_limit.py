"""Rate limits: exact in every window, all or none, free when refused, true in what they promise."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.scheduling.contracts import (
    Endpoint,
    LimitWindow,
    RateLimit,
    TenantPolicy,
    TierPolicy,
    decode,
    encode,
)
from tidegate.scheduling.limit_state import WindowState, restore_state, window_state
from tidegate.scheduling.limit_window import Clocks
from tidegate.scheduling.outcomes import HTTP_ERRORS, Outcome
from tidegate.scheduling.rate_limit import LimitRefusal, RateLimiter, Reservation

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()
MINUTE = RateLimit("minute", LimitWindow.MINUTE, tokens=100)
WINDOW_SECONDS = {LimitWindow.MINUTE: 60.0, LimitWindow.HOUR: 3_600.0}


def at(seconds: float, utc: float | None = None) -> Clocks:
    """So long after the start, at noon of the last day of November 2026."""
    return Clocks(seconds, NOON + seconds if utc is None else utc)


def taken(
    limiter: RateLimiter, limits: Sequence[RateLimit], tokens: int, clocks: Clocks
) -> Reservation:
    got = limiter.reserve("a", limits, tokens, clocks)
    assert isinstance(got, Reservation), got
    return got


def refused(
    limiter: RateLimiter, limits: Sequence[RateLimit], tokens: int, clocks: Clocks
) -> LimitRefusal:
    got = limiter.reserve("a", limits, tokens, clocks)
    assert isinstance(got, LimitRefusal), got
    return got


def test_o6_requests_side_by_side_do_not_slip_under_the_limit() -> None:
    limiter = RateLimiter()
    got = [limiter.reserve("a", [MINUTE], 8 + 50, at(0)) for _ in range(5)]
    assert [isinstance(each, Reservation) for each in got] == [True] + [False] * 4
    first = got[0]
    assert isinstance(first, Reservation)
    first.settle(8 + 10)
    # What was not used is there again at once, for one more.
    taken(limiter, [MINUTE], 58, at(1))
    refused(limiter, [MINUTE], 58, at(1))


def test_o3_what_was_used_counts_and_not_what_was_reserved() -> None:
    limiter = RateLimiter()
    one = taken(limiter, [MINUTE], 20, at(0))
    one.top_up(15)
    assert one.tokens == 20
    one.top_up(80)
    assert refused(limiter, [MINUTE], 21, at(1)).limit == "minute"
    one.settle(80)
    taken(limiter, [MINUTE], 20, at(1)).release()
    one.settle(1)
    one.release()
    assert limiter.room("a", [MINUTE], at(1))[1] == (100, 20, 60.0)


def test_o9_a_stepped_wall_clock_changes_nothing_in_rolling_windows() -> None:
    limiter = RateLimiter()
    taken(limiter, [MINUTE], 100, at(0))
    for now, step in ((1, -3600), (2, 3600), (3, 86_400 * 40), (3, -86_400 * 40)):
        refused(limiter, [MINUTE], 1, at(now, NOON + step))
    refused(limiter, [MINUTE], 1, at(60.9, 0))
    # A monotonic clock that stands still or goes back lets no time pass either.
    refused(limiter, [MINUTE], 1, at(-1e6))
    taken(limiter, [MINUTE], 100, at(61))


def test_o9_a_wall_clock_that_steps_to_and_fro_gives_no_second_day() -> None:
    limiter, day = RateLimiter(), RateLimit("day", LimitWindow.DAY, tokens=10)
    midnight = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    taken(limiter, [day], 10, at(0, midnight - 1))
    taken(limiter, [day], 9, at(1, midnight))
    for seconds in (-0.5, 0.5, -3600, 3600):
        refused(limiter, [day], 2, at(2, midnight + seconds))
    # Nor does a jump far ahead and back; and the days after it are days again.
    taken(limiter, [day], 10, at(3, midnight + 1e7))
    taken(limiter, [day], 1, at(4, midnight + 60))
    taken(limiter, [day], 10, at(5, midnight + 86_400))
    refused(limiter, [day], 1, at(6, midnight + 60))


@pytest.mark.parametrize(
    ("per", "utc", "next_window"),
    [
        pytest.param(LimitWindow.DAY, "2026-11-30T23:59:59", "2026-12-01T00:00:00", id="day"),
        pytest.param(LimitWindow.MONTH, "2026-11-30T12:00:00", "2026-12-01T00:00:00", id="month"),
        pytest.param(LimitWindow.MONTH, "2026-12-01T00:00:00", "2027-01-01T00:00:00", id="year"),
        pytest.param(LimitWindow.MONTH, "2028-02-29T12:00:00", "2028-03-01T00:00:00", id="leap"),
    ],
)
def test_days_and_months_begin_at_midnight_in_utc(
    per: LimitWindow, utc: str, next_window: str
) -> None:
    limiter, limit = RateLimiter(), RateLimit("calendar", per, requests=1)
    now, then = (
        datetime.fromisoformat(t).replace(tzinfo=UTC).timestamp() for t in (utc, next_window)
    )
    taken(limiter, [limit], 5, at(0, now))
    assert refused(limiter, [limit], 5, at(1, now)).retry_after_seconds == then - now
    refused(limiter, [limit], 5, at(2, then - 0.001))
    taken(limiter, [limit], 5, at(3, then))


def test_time_zones_play_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    for zone in ("Pacific/Kiritimati", "America/Los_Angeles"):
        monkeypatch.setenv("TZ", zone)
        limiter, month = RateLimiter(), RateLimit("month", LimitWindow.MONTH, requests=1)
        end = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
        taken(limiter, [month], 1, at(0, end - 1))
        refused(limiter, [month], 1, at(1, end - 0.5))
        taken(limiter, [month], 1, at(2, end))


def test_all_limits_or_none_and_a_refusal_costs_nothing() -> None:
    limiter = RateLimiter()
    calls = RateLimit("calls", LimitWindow.HOUR, requests=5)
    limits = [calls, MINUTE]
    taken(limiter, limits, 60, at(0))
    for _ in range(20):
        assert refused(limiter, limits, 60, at(1)).limit == "minute"
    assert limiter.room("a", limits, at(1)) == ((5, 4, 3659.0), (100, 40, 60.0))
    for _ in range(4):
        taken(limiter, [calls], 10**9, at(1))
    # The one that holds it up longest is named.
    assert refused(limiter, limits, 60, at(2)) == (Outcome.RATE_LIMITED, "calls", 3658)


def test_what_is_larger_than_the_whole_window_can_never_pass() -> None:
    limiter = RateLimiter()
    got = refused(limiter, [RateLimit("calls", LimitWindow.DAY, requests=1), MINUTE], 101, at(0))
    assert got == (Outcome.REQUEST_EXCEEDS_LIMIT, "minute", None)
    assert HTTP_ERRORS[got.outcome].status == 413
    assert not HTTP_ERRORS[got.outcome].retryable
    taken(limiter, [MINUTE], 100, at(0))


def test_what_ended_without_work_is_as_if_it_had_never_been() -> None:
    limiter, limit = RateLimiter(), RateLimit("calls", LimitWindow.MINUTE, requests=1, tokens=50)
    for second in range(10):
        taken(limiter, [limit], 50, at(second)).release()
    assert limiter.room("a", [limit], at(9)) == ((1, 1, 0.0), (50, 50, 0.0))
    taken(limiter, [limit], 50, at(9))


def test_a_long_request_is_settled_into_the_window_of_its_reservation() -> None:
    limiter = RateLimiter()
    one = taken(limiter, [MINUTE], 60, at(0))
    one.top_up(90)
    other = taken(limiter, [MINUTE], 50, at(61))
    one.settle(1_000)
    taken(limiter, [MINUTE], 50, at(62))
    other.settle(0)
    taken(limiter, [MINUTE], 50, at(62))


def test_a_tenant_overrides_its_tiers_limits_by_name_and_others_count_what_they_say() -> None:
    chat = RateLimit("chat", LimitWindow.MINUTE, requests=9, endpoints=(Endpoint.CHAT,))
    big = RateLimit("big", LimitWindow.HOUR, tokens=9, models=("big",))
    mine = RateLimit("chat", LimitWindow.HOUR, requests=1)
    tier = TierPolicy("t0", rate_limits=(chat, big))
    assert tier.rate_limits_of(TenantPolicy("a", "t0")) == (chat, big)
    assert tier.rate_limits_of(TenantPolicy("a", "t0", rate_limits=(mine, MINUTE))) == (
        mine,
        big,
        MINUTE,
    )
    assert chat.counts(Endpoint.CHAT, "small")
    assert not chat.counts(Endpoint.EMBEDDINGS, "small")
    assert big.counts(Endpoint.EMBEDDINGS, "big")
    assert not big.counts(Endpoint.CHAT, "small")
    assert big.counts(None, None)
    assert chat.counts(None, None)
    assert not big.counts(None, "small")


def test_a_new_limit_or_amount_keeps_what_was_counted() -> None:
    limiter = RateLimiter()
    taken(limiter, [MINUTE], 60, at(0))
    less = RateLimit("minute", LimitWindow.MINUTE, tokens=50)
    assert limiter.room("a", [less], at(1)) == (None, (50, 0, 60.0))
    assert refused(limiter, [less], 10, at(1)).retry_after_seconds == 60
    more = RateLimit("minute", LimitWindow.MINUTE, tokens=200, requests=3)
    taken(limiter, [more], 140, at(1))
    assert limiter.room("a", [more], at(1)) == ((3, 1, 61.0), (200, 0, 61.0))


def test_counters_in_which_nothing_counts_are_let_go() -> None:
    limiter = RateLimiter()
    month = RateLimit("month", LimitWindow.MONTH, requests=5)
    taken(limiter, [MINUTE, month], 10, at(0))
    limiter.forget_unused(at(30))
    assert len(limiter.windows) == 2
    limiter.forget_unused(at(62))
    assert [key[1] for key in limiter.windows] == ["month"]
    limiter.forget_unused(at(3, NOON + 86_400 * 31))
    assert not limiter.windows


def restarted(limiter: RateLimiter, before: Clocks, after: Clocks) -> RateLimiter:
    """Its counters in another process, through JSON."""
    made = RateLimiter()
    states = [
        decode(WindowState, encode(window_state(key, window, before)))
        for key, window in limiter.windows.items()
    ]
    restore_state(made, states, after)
    return made


def test_a_months_limit_survives_a_restart() -> None:
    limiter = RateLimiter()
    limits = [RateLimit("month", LimitWindow.MONTH, tokens=1000), MINUTE]
    taken(limiter, limits, 90, at(1e6, NOON)).settle(60)
    taken(limiter, limits, 30, at(1e6 + 10, NOON + 10))
    other = restarted(limiter, at(1e6 + 20, NOON + 20), at(5, NOON + 25))
    assert refused(other, limits, 11, at(5, NOON + 25)).limit == "minute"
    assert other.room("a", limits, at(5, NOON + 25))[1] == (100, 10, pytest.approx(46, abs=2))
    # 70 seconds after the reservations they count in the month alone.
    assert other.room("a", limits, at(60, NOON + 80))[1] == (100, 100, 0.0)
    assert other.room("a", limits[:1], at(60, NOON + 80))[1] == (1000, 910, 86_400 / 2 - 80)
    much_later = restarted(limiter, at(1e6 + 20, NOON + 20), at(0, NOON + 86_400))
    assert much_later.room("a", limits, at(0, NOON + 86_400))[1] == (100, 100, 0.0)


@given(
    st.lists(st.tuples(st.sampled_from([0, 0.75, 3.5, 9]), st.integers(1, 60)), min_size=1),
    st.sampled_from([0, 12.25, 40, 59.5, 200]),
    st.floats(-1000, 1000),
    st.floats(-10, 10),
)
def test_a_restart_forgets_nothing_early_and_keeps_nothing_long(
    requests: list[tuple[float, int]], down_seconds: float, begin: float, step: float
) -> None:
    limiter, now, sent = RateLimiter(), 0.0, []
    for gap, tokens in requests:
        now += gap
        if isinstance(limiter.reserve("a", [MINUTE], tokens, at(now)), Reservation):
            sent.append((now, tokens))
    after = Clocks(begin, NOON + now + down_seconds + min(step, 0))
    other = restarted(limiter, at(now), after)
    for quarters in range(0, 400, 3):
        later = quarters / 4
        moment = now + down_seconds + later
        room = other.room("a", [MINUTE], Clocks(begin + later, after.utc + later))[1]
        assert room is not None
        counted = room.limit - room.remaining
        least = sum(tokens for sent_at, tokens in sent if moment - sent_at < 60)
        most = sum(tokens for sent_at, tokens in sent if moment - sent_at <= 63 - min(step, 0))
        assert least <= counted <= most


class Load:
    """Random requests with a reservation below what they may use; keeps its own books."""

    def __init__(self, seed: int, limits: Sequence[RateLimit]) -> None:
        self.random = random.Random(seed)
        self.limiter = RateLimiter()
        self.limits = limits
        self.clocks = at(0)
        self.flights: list[tuple[Reservation, int, float]] = []
        """(reservation, what it will have used, when it was admitted)."""
        self.ended: list[tuple[float, int]] = []
        self.refusals: list[LimitRefusal] = []
        self.excess = 0
        """What those in flight at an admission may use beyond what is counted of them, at most."""

    def step(self) -> None:
        act = self.random.random()
        if act < 0.5:
            self.submit()
        elif act < 0.8 and self.flights:
            self.end(self.random.randrange(len(self.flights)))
        else:
            seconds = self.random.choice([0, 0.25, 1, 7, 29, 61])
            self.clocks = Clocks(self.clocks.now + seconds, self.clocks.utc + seconds)

    def submit(self) -> None:
        prompt, most = self.random.randint(1, 40), self.random.randint(1, 60)
        reserved = prompt + self.random.randint(0, most)
        before = self.limiter.room("a", self.limits, self.clocks)
        got = self.limiter.reserve("a", self.limits, reserved, self.clocks)
        if isinstance(got, LimitRefusal):
            self.refusals.append(got)
            assert self.limiter.room("a", self.limits, self.clocks) == before
            return
        self.flights.append((got, prompt + self.random.randint(0, most), self.clocks.now))
        self.excess = max(
            self.excess, sum(max(used - flight.tokens, 0) for flight, used, _ in self.flights)
        )

    def end(self, index: int) -> None:
        reservation, used, admitted = self.flights.pop(index)
        if self.random.random() < 0.1:
            reservation.release()
            return
        reservation.top_up(self.random.randint(0, used))
        reservation.settle(used)
        self.ended.append((admitted, used))

    def most_settled(self, seconds: float) -> int:
        """In any interval of so many seconds, by the time of the reservation."""
        return max(
            (
                sum(used for at, used in self.ended if begin <= at < begin + seconds)
                for begin, _ in self.ended
            ),
            default=0,
        )


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from(sorted(WINDOW_SECONDS)))
def test_settled_never_exceeds_the_limit_by_more_than_those_in_flight(
    seed: int, per: LimitWindow
) -> None:
    load = Load(seed, [RateLimit("both", per, requests=6, tokens=200)])
    for _ in range(300):
        load.step()
    while load.flights:
        load.end(0)
    assert load.most_settled(WINDOW_SECONDS[per]) <= 200 + load.excess


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_retry_after_is_true_and_not_too_long(seed: int) -> None:
    limits = [
        RateLimit("minute", LimitWindow.MINUTE, requests=4, tokens=150),
        RateLimit("hour", LimitWindow.HOUR, tokens=900),
        RateLimit("day", LimitWindow.DAY, requests=60),
    ]
    load = Load(seed, limits)
    for _ in range(200):
        load.step()
    clocks = load.clocks
    got = load.limiter.reserve("a", limits, 100, clocks)
    if isinstance(got, Reservation):
        return
    assert got.outcome is Outcome.RATE_LIMITED
    seconds = got.retry_after_seconds
    assert seconds is not None
    assert seconds >= 1
    if seconds > 1:
        early = Clocks(clocks.now + seconds - 1.001, clocks.utc + seconds - 1.001)
        assert isinstance(load.limiter.reserve("a", limits, 100, early), LimitRefusal)
    later = Clocks(clocks.now + seconds, clocks.utc + seconds)
    assert isinstance(load.limiter.reserve("a", limits, 100, later), Reservation)


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda one: (one.settle(30), one.settle(99)), id="settle twice"),
        pytest.param(lambda one: (one.settle(30), one.release()), id="settle, release"),
        pytest.param(lambda one: (one.settle(30), one.top_up(99)), id="settle, top up"),
    ],
)
def test_a_reservation_is_settled_exactly_once(act: Callable[[Reservation], object]) -> None:
    limiter = RateLimiter()
    act(taken(limiter, [MINUTE], 50, at(0)))
    assert limiter.room("a", [MINUTE], at(0)) == (None, (100, 70, 61.0))
