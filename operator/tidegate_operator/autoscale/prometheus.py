"""What a Prometheus says of one pool's promises: asked in bounded time, believed only when fresh.

Theory of operation. A few instant queries: the error ratios of the pool's own recording rules over
five minutes and an hour, when the former were last recorded, and the pool's alerts that fire. That
no alert fires is news only where the rules are evaluated on data, so all of it rests on the ratios:
every objective in force must have both, recorded lately, and a number. Anything else is the reason
why nothing is known.

An answer is read up to a size, within a time, and never repeated in a message: the address is a
pool's owner's to set.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from tidegate.scheduling.contracts import TierPolicy
from tidegate_operator.autoscale.signals import LAG_SECONDS, Alert, Burn
from tidegate_operator.slo.rules import BASELINE_ALERT, BUDGET_ALERT, POOL
from tidegate_operator.slo.windows import Severity

Json = dict[str, Any]

TIMEOUT = aiohttp.ClientTimeout(total=5.0, sock_connect=2.0)
"""Of one query; after the first that fails no other is asked."""
FRESH_SECONDS = 180.0
"""Rules are evaluated every minute at the latest; Prometheus itself answers with what is 5 minutes
old."""
MAX_ANSWER_BYTES = 1 << 20

_SHORT, _LONG = "slo:sli_error:ratio_rate5m", "slo:sli_error:ratio_rate1h"
_LOOKBACK_SECONDS = {
    (BUDGET_ALERT, str(Severity.PAGE)): 30 * 60.0,
    (BUDGET_ALERT, str(Severity.TICKET)): 6 * 3600.0,
    (BASELINE_ALERT, str(Severity.TICKET)): 5 * 60.0,
}
"""The longer of the short windows of each alert: for so long it may still fire for what is over."""


@dataclass(frozen=True, slots=True)
class Told:
    """What was found out; a text in the place of the rest: why nothing is known."""

    burns: Sequence[Burn] | str
    alerts: Sequence[Alert] | str


class NoAnswer(Exception):
    """A query without a usable answer."""


async def ask(
    session: aiohttp.ClientSession,
    address: str,
    pool: str,
    tiers: Sequence[TierPolicy],
    now_seconds: float,
) -> Told:
    """Ask the Prometheus at this base URL about a pool (namespace/name); never raises for what it
    does or does not answer. ``now_seconds`` is the present, since the epoch."""
    selector = _selector(pool)
    alerts = f'alertstate="firing",alertname=~"{BUDGET_ALERT}|{BASELINE_ALERT}"'
    queries = (
        f"{_SHORT}{{{selector}}}",
        f"{_LONG}{{{selector}}}",
        f"timestamp({_SHORT}{{{selector}}})",
        f"ALERTS{{{alerts},{selector}}}",
    )
    try:
        answers = [await _query(session, address, query) for query in queries]
    except NoAnswer as error:
        return Told(str(error), str(error))
    return interpret(*answers, tiers=tiers, now_seconds=now_seconds)


def interpret(
    short: Sequence[Json],
    long: Sequence[Json],
    recorded: Sequence[Json],
    firing: Sequence[Json],
    *,
    tiers: Sequence[TierPolicy],
    now_seconds: float,
) -> Told:
    """What the four answers, each an instant vector, amount to."""
    series = [_by_objective(vector) for vector in (short, long, recorded)]
    burns = []
    for tier in tiers:
        for objective in tier.slo_objectives:
            key = tier.name, str(objective.metric)
            what = f"{key[1]} of tier {key[0]}"
            if any(key not in found for found in series):
                why = f"Prometheus has no series for {what}: it needs the pool's rules and metrics"
                return Told(why, why)
            ratios = [series[0][key], series[1][key]]
            if not all(map(math.isfinite, ratios)):
                why = f"Prometheus has no number for {what}"
                return Told(why, why)
            if abs(now_seconds - series[2][key]) > FRESH_SECONDS:
                why = f"what Prometheus has for {what} is too old"
                return Told(why, why)
            budget = max(1e-9, 1 - objective.ratio_percent / 100)
            burns.append(Burn(*key, ratios[0] / budget, ratios[1] / budget))
    if not burns:
        why = "no tier is promised anything"
        return Told(why, why)
    return Told(burns, [_alert(sample["metric"]) for sample in firing])


def _by_objective(vector: Sequence[Json]) -> Mapping[tuple[str, str], float]:
    found = {}
    for sample in vector:
        labels = sample["metric"]
        key = labels.get("tier", ""), labels.get("objective", "")
        found[key] = float(sample["value"][1])
    return found


def _alert(labels: Mapping[str, str]) -> Alert:
    name, severity = labels.get("alertname", ""), labels.get("severity", "")
    lookback = _LOOKBACK_SECONDS.get((name, severity), max(_LOOKBACK_SECONDS.values()))
    return Alert(name, severity, labels.get("tier", ""), lookback + LAG_SECONDS)


def _selector(pool: str) -> str:
    namespace, _, name = pool.partition("/")
    return f'namespace="{namespace}",{POOL}="{name}"'


async def _query(session: aiohttp.ClientSession, address: str, query: str) -> list[Json]:
    """The instant vector that the query has now."""
    url = f"{address.rstrip('/')}/api/v1/query"
    try:
        async with session.get(
            url, params={"query": query}, timeout=TIMEOUT, allow_redirects=False
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
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise NoAnswer("Prometheus answers with what is not its API's JSON") from None


def _sample(sample: Json) -> Json:
    time, value = sample["value"]
    labels = {str(name): str(label) for name, label in sample["metric"].items()}
    return {"metric": labels, "value": [time, float(value)]}
