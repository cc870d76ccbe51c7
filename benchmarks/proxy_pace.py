"""What the sidecar adds at a quiet rate, and what long streams get through it; part of ``proxy``.

*Added latency*: requests are sent at given times, answered or not, straight to the upstream and
through the sidecar; the difference of the medians. *Long streams*: as many events as go through,
through a bare aiohttp pass-through and through the sidecar; then the upstream is slowed down to a
part of what went through the sidecar, over more streams at once, and the longest time in which one
of them got nothing is the stall.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Collection

import rivals
import uvloop
from canned_engine import MODEL
from load_client import Outcome, check_stream, check_whole, load
from report import Aim, Figure, figure

QUIET_PER_SECOND = 100.0
QUIET_TOKENS = 16
LONG_EVENTS = 1_000
STREAMS = 16
SLOWED_STREAMS = 64
SLOWED_TO = 0.7
WARM_UP_SECONDS = 1.5

MESSAGES = [{"role": "user", "content": "What is the difference between a queue and a stack? " * 8}]
QUIET = {"model": MODEL, "messages": MESSAGES, "max_tokens": QUIET_TOKENS}
# the first event has the role only, each other one a token
LONG = {"model": MODEL, "messages": MESSAGES, "max_tokens": LONG_EVENTS - 1, "stream": True}


def figures(
    upstream_port: int, core: int, seconds: float, left_out: Collection[str]
) -> list[Figure]:
    """All of them; each phase takes so many seconds, and the warm-up."""
    ours, bare = rivals.SIDECAR, rivals.BARE
    if ours.name in left_out or bare.name in left_out:
        why = f"needs {ours.name} and {bare.name}"
        return _all(why, why, why)
    try:
        direct = _quiet(upstream_port, seconds)
        with rivals.running(bare, upstream_port, core) as (port, _):
            bare_long = _long(port, seconds, STREAMS)
        with rivals.running(ours, upstream_port, core) as (port, _):
            through = _quiet(port, seconds)
            long = _long(port, seconds, STREAMS)
            slowed = _slowed(upstream_port, port, seconds, SLOWED_TO * _events(long))
    except (rivals.MissingError, OSError, _WrongAnswerError) as error:
        return _all(str(error), str(error), str(error))
    stream_events, through_events = _events(bare_long), _events(long)
    added_ms = through.percentile_ms(50) - direct.percentile_ms(50)
    return _all(
        f"{through.percentile_ms(50):.2f} ms against {direct.percentile_ms(50):.2f} ms straight to "
        "the upstream",
        f"{through_events:,.0f} events/s against {stream_events:,.0f}",
        f"at {_events(slowed):,.0f} events/s over {SLOWED_STREAMS} streams",
        (added_ms, through_events / stream_events, slowed.longest_gap_ms),
    )


def _all(
    quiet: str,
    long: str,
    slowed: str,
    values: tuple[float | None, float | None, float | None] = (None, None, None),
) -> list[Figure]:
    added, events, stall = values
    rate = f"{QUIET_PER_SECOND:g} requests/s"
    return [
        figure(f"sidecar adds at {rate}, p50", added, "ms", Aim("<=", 1.0), quiet),
        figure("events of long streams, sidecar over bare aiohttp", events, "ratio",
               Aim(">=", 0.6), long),
        figure(f"longest stall at {SLOWED_TO:.0%} of that", stall, "ms", Aim("<=", 100.0), slowed),
    ]  # fmt: skip


class _WrongAnswerError(Exception):
    """Something was answered wrongly, or nothing at all."""


def _checked(outcome: Outcome) -> Outcome:
    if outcome.wrong:
        raise _WrongAnswerError(f"{outcome.wrong} wrong answers, such as: {outcome.errors[0]}")
    if not outcome.latencies_ms:
        raise _WrongAnswerError(f"nothing was answered in {outcome.seconds:g} s")
    return outcome


def _quiet(port: int, seconds: float) -> Outcome:
    return _checked(
        uvloop.run(
            load(
                port,
                QUIET,
                rivals.KEY,
                check_whole(QUIET_TOKENS),
                connections=STREAMS,
                warm_up_seconds=WARM_UP_SECONDS,
                seconds=seconds,
                per_second=QUIET_PER_SECOND,
            )
        )
    )


def _long(port: int, seconds: float, streams: int) -> Outcome:
    return _checked(
        uvloop.run(
            load(
                port,
                LONG,
                rivals.KEY,
                check_stream(LONG_EVENTS - 1),
                connections=streams,
                warm_up_seconds=WARM_UP_SECONDS,
                seconds=seconds,
            )
        )
    )


def _slowed(upstream_port: int, port: int, seconds: float, per_second: float) -> Outcome:
    """Long streams of an upstream that sends so many events a second over all of them."""
    wait_seconds = SLOWED_STREAMS / per_second
    _pace(upstream_port, wait_seconds)
    try:
        whole = LONG_EVENTS * wait_seconds  # at least two of each stream, however slow
        return _long(port, max(seconds, 2 * whole), SLOWED_STREAMS)
    finally:
        _pace(upstream_port, 0.0)


def _pace(upstream_port: int, seconds: float) -> None:
    address = f"http://127.0.0.1:{upstream_port}/pace/{round(seconds * 1e6)}"
    with urllib.request.urlopen(address, timeout=10):
        pass


def _events(outcome: Outcome) -> float:
    """A second; the role's and [DONE] are events too."""
    return outcome.per_second * (LONG_EVENTS + 1)
