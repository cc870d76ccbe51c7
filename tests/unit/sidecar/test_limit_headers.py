"""OpenAI's rate-limit headers: which are sent, and how a duration is written."""

from __future__ import annotations

import pytest
from tidegate_sidecar.limit_headers import duration, limit_headers

from tidegate.scheduling.rate_limit import Room


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.0004, "1ms"),
        (0.02, "20ms"),
        (0.9999, "1s"),
        (1.0, "1s"),
        (8.64, "8.64s"),
        (59.9996, "1m0s"),
        (86.4, "1m26.4s"),
        (360.0, "6m0s"),
        (4_323.0, "1h12m3s"),
        (2_678_400.0, "744h0m0s"),
    ],
)
def test_durations_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_what_is_not_limited_has_no_headers() -> None:
    assert limit_headers(None, None) == {}
    assert limit_headers(None, Room(1000, 250, 0.5)) == {
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "250",
        "x-ratelimit-reset-tokens": "500ms",
    }
