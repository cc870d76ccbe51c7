"""Instant queries to a pool's Prometheus: in bounded time, up to a size.

Whoever asks gets what was asked for, or one reason why there is no answer (:func:`answered`); what
is believed of an answer is said by :mod:`tidegate_operator.slo.recorded`. What is answered is never
repeated in a message: the address is a pool's owner's to set.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

import aiohttp

from tidegate_operator.slo.recorded import Recorded, recorded
from tidegate_operator.slo.rules import POOL

log = logging.getLogger(__name__)

Json = dict[str, Any]
Answer = TypeVar("Answer")

TIMEOUT = aiohttp.ClientTimeout(total=5.0, sock_connect=2.0)
"""Of one query; after the first that fails no other should be asked."""
MAX_ANSWER_BYTES = 1 << 20
ASK_SECONDS = 15.0
"""Between questions of one kind: a scrape interval, at which answers change."""


class NoAnswer(Exception):
    """A query without a usable answer."""


def pool_selector(pool: str) -> str:
    """Label matchers, without braces, of what the rules of a pool (namespace/name) record."""
    namespace, _, name = pool.partition("/")
    return f'namespace="{namespace}",{POOL}="{name}"'


async def answered(asking: Awaitable[Answer], pool: str) -> Answer | str:
    """What was asked for about the pool (namespace/name), or why there is no answer; never
    raises."""
    try:
        return await asking
    except NoAnswer as error:
        return str(error)
    except Exception:
        log.exception("asking the Prometheus of pool %s failed", pool)
        return "Prometheus could not be asked"


async def ask_recorded(
    session: aiohttp.ClientSession, address: str, pool: str, names: Sequence[str], asked_at: float
) -> Recorded:
    """What the rules of the pool recorded under these names; ``asked_at`` is the present, since the
    epoch. :class:`NoAnswer` where one of the queries has none."""
    series = [f"{name}{{{pool_selector(pool)}}}" for name in names]
    vectors = [await query(session, address, asked) for asked in series]
    times = await query(session, address, f"timestamp({series[0]})")
    return recorded(vectors, times, asked_at)


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
