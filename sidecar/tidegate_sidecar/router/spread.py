"""Queued requests that should move, when a pod has become free or new. Pure.

A pod whose queue is empty while others have more than their part takes what makes the queues even;
the others hand back so many, the newest first, and the router sends those on. Work that has begun
never moves. A difference of one is left alone, so that nothing goes to and fro.
"""

from __future__ import annotations

from collections.abc import Mapping


def to_hand_back(queued: Mapping[str, int]) -> dict[str, int]:
    """How many requests each pod should hand back; ``queued``: what waits on each that serves."""
    if len(queued) < 2 or min(queued.values()) > 0:
        return {}
    even = -(-sum(queued.values()) // len(queued))
    return {pod: count - even for pod, count in queued.items() if count > even}
