"""Ids of requests: 96 random bits each, in hexadecimal.

Who knows an id can ask what became of its request, so none may be guessed: they are the operating
system's random numbers, drawn for many requests at once because each draw is a system call.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

_DIGITS = 24
_DRAWN = 128
"""Ids of one draw."""


def request_ids() -> Iterator[str]:
    """A new id each time; endless. Not for a process that forks."""
    while True:
        digits = secrets.token_hex(_DRAWN * _DIGITS // 2)
        for start in range(0, len(digits), _DIGITS):
            yield digits[start : start + _DIGITS]
