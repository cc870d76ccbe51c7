"""Instant queries to a pool's Prometheus: in bounded time, up to a size.

What is answered is never repeated in a message: the address is a pool's owner's to set.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from tidegate_operator.slo.rules import POOL

Json = dict[str, Any]

TIMEOUT = aiohttp.ClientTimeout(total=5.0, sock_connect=2.0)
"""Of one query; after the first that fails no other should be asked."""
MAX_ANSWER_BYTES = 1 << 20
FRESH_SECONDS = 180.0
"""Rules are evaluated every minute at the latest; Prometheus itself answers with what is 5 minutes
old."""


class NoAnswer(Exception):
    """A query without a usable answer."""


def pool_selector(pool: str) -> str:
    """Label matchers, without braces, of what the rules of a pool (namespace/name) record."""
    namespace, _, name = pool.partition("/")
    return f'namespace="{namespace}",{POOL}="{name}"'


def is_fresh(recorded_seconds: float, now_seconds: float) -> bool:
    """Whether what was recorded then, since the epoch, is news; no number is none."""
    return abs(now_seconds - recorded_seconds) <= FRESH_SECONDS


def by_objective(vector: Sequence[Json]) -> Mapping[tuple[str, str], float]:
    """The values of an instant vector by (tier, objective)."""
    found = {}
    for sample in vector:
        labels = sample["metric"]
        key = labels.get("tier", ""), labels.get("objective", "")
        found[key] = float(sample["value"][1])
    return found


async def query(session: aiohttp.ClientSession, address: str, asked: str) -> list[Json]:
    """The instant vector that PromQL gives now at this base URL; :class:`NoAnswer` otherwise."""
    url = f"{address.rstrip('/')}/api/v1/query"
    try:
        async with session.get(
            url, params={"query": asked}, timeout=TIMEOUT, allow_redirects=False
        ) as response:
            if response.status != 200:
                raise NoAnswer(f"Prometheus answers {response.status}")
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > MAX_ANSWER_BYTES:
                    raise NoAnswer("Prometheus answers with too much")
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise NoAnswer(f"Prometheus does not answer ({type(error).__name__})") from None
    try:
        found = json.loads(body)["data"]
        if found["resultType"] != "vector":
            raise NoAnswer("Prometheus answers with something else than a vector")
        return [_sample(sample) for sample in found["result"]]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise NoAnswer("Prometheus answers with what is not its API's JSON") from None


def _sample(sample: Json) -> Json:
    time, value = sample["value"]
    labels = {str(name): str(label) for name, label in sample["metric"].items()}
    return {"metric": labels, "value": [time, float(value)]}
