"""How long ago, for a person."""

from __future__ import annotations


def age(seconds: int) -> str:
    """In the largest unit of which there are two."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"
