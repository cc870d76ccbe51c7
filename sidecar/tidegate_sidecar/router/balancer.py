"""Which pod serves a request: the least loaded one, or the one that knows its prefix. Pure.

Theory of operation: load is outstanding work in tokens (prompt and expected output of what was sent
and has not ended). A request with an affinity key (a session, a shared prefix) prefers the pods in
the order of their rendezvous hash with it (Thaler and Ravishankar, 1998), so that a pod that joins
or leaves moves only the keys that are its own. Affinity never delays: it takes the first pod in
that order whose load is at most ``1 + SLACK`` of the mean and one request like this one (consistent
hashing with bounded loads: Mirrokni, Thorup and Zadimoghaddam, 2018); there always is one, since
no mean is below the least.

Invariant: a pod with more than that is never chosen, whatever the affinity.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol, TypeVar

SLACK = 0.25


class Loaded(Protocol):
    """A pod, as far as the choice needs to know it."""

    @property
    def name(self) -> str:
        """Stable over restarts of the router, so that affinity is too."""

    @property
    def outstanding_tokens(self) -> int:
        """Work that was sent to it and has not ended."""


Pod = TypeVar("Pod", bound=Loaded)


def choose(pods: Sequence[Pod], affinity: bytes | None, tokens: int, turn: int = 0) -> Pod | None:
    """The pod for a request of so many tokens; None: there is none.

    ``turn`` rotates among pods that are equally loaded.
    """
    if not pods:
        return None
    if affinity is not None:
        total = sum(pod.outstanding_tokens for pod in pods)
        most = (1 + SLACK) * total / len(pods) + tokens
        light = [pod for pod in pods if pod.outstanding_tokens <= most]
        return min(light, key=lambda pod: _rank(affinity, pod.name))
    first = turn % len(pods)
    return min((*pods[first:], *pods[:first]), key=lambda each: each.outstanding_tokens)


def _rank(affinity: bytes, name: str) -> bytes:
    return blake2b(affinity + b"\0" + name.encode(), digest_size=8).digest()
