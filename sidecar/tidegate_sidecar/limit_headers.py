"""OpenAI's ``x-ratelimit-`` headers: what a tenant's rate limits leave it.

Of requests and of tokens each the limit with least left is told, as of the moment of the answer's
head, its own reservation counted; a kind that is not limited has no headers. ``reset`` is the time
until all of the limit is there again if nothing is taken meanwhile, written as OpenAI writes it:
``20ms``, ``1s``, ``8.64s``, ``6m0s``, ``1h12m3s`` (Go's durations).
"""

from __future__ import annotations

from math import ceil

from tidegate.scheduling.rate_limit import Room


def limit_headers(requests: Room | None, tokens: Room | None) -> dict[str, str]:
    """The headers for what ``Scheduler.room`` says."""
    headers: dict[str, str] = {}
    for kind, room in (("requests", requests), ("tokens", tokens)):
        if room is not None:
            headers[f"x-ratelimit-limit-{kind}"] = str(room.limit)
            headers[f"x-ratelimit-remaining-{kind}"] = str(room.remaining)
            headers[f"x-ratelimit-reset-{kind}"] = duration(room.reset_seconds)
    return headers


def duration(seconds: float) -> str:
    """A duration as OpenAI writes it, rounded up to a millisecond."""
    ms = max(0, ceil(round(seconds * 1000, 3)))
    if ms < 1000:
        return f"{ms}ms" if ms else "0s"
    minutes, ms = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{ms // 1000}.{ms % 1000:03d}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
