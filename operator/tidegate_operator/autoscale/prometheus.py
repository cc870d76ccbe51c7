"""What a Prometheus says of one pool's promises: asked in bounded time, believed only when fresh.

Theory of operation. A few instant queries: the error ratios of the pool's own recording rules over
five minutes and an hour, when the former were last recorded, and the pool's alerts that fire. That
no alert fires is news only where the rules are evaluated on data, so all of it rests on the ratios:
every objective in force must have both, recorded lately, and a number. Anything else is the reason
why nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from tidegate.scheduling.contracts import TierPolicy
from tidegate_operator.autoscale.signals import LAG_SECONDS, Alert, Burn
from tidegate_operator.prometheus_query import (
    NoAnswer,
    by_objective,
    is_fresh,
    pool_selector,
    query,
)
from tidegate_operator.slo.rules import BASELINE_ALERT, BUDGET_ALERT
from tidegate_operator.slo.windows import Severity

Json = dict[str, Any]

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


async def ask(
    session: aiohttp.ClientSession,
    address: str,
    pool: str,
    tiers: Sequence[TierPolicy],
    now_seconds: float,
) -> Told:
    """Ask the Prometheus at this base URL about a pool (namespace/name); never raises for what it
    does or does not answer. ``now_seconds`` is the present, since the epoch."""
    selector = pool_selector(pool)
    alerts = f'alertstate="firing",alertname=~"{BUDGET_ALERT}|{BASELINE_ALERT}"'
    queries = (
        f"{_SHORT}{{{selector}}}",
        f"{_LONG}{{{selector}}}",
        f"timestamp({_SHORT}{{{selector}}})",
        f"ALERTS{{{alerts},{selector}}}",
    )
    try:
        answers = [await query(session, address, asked) for asked in queries]
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
    series = [by_objective(vector) for vector in (short, long, recorded)]
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
            if not is_fresh(series[2][key], now_seconds):
                why = f"what Prometheus has for {what} is too old"
                return Told(why, why)
            budget = max(1e-9, 1 - objective.ratio_percent / 100)
            burns.append(Burn(*key, ratios[0] / budget, ratios[1] / budget))
    if not burns:
        why = "no tier is promised anything"
        return Told(why, why)
    return Told(burns, [_alert(sample["metric"]) for sample in firing])


def _alert(labels: Mapping[str, str]) -> Alert:
    name, severity = labels.get("alertname", ""), labels.get("severity", "")
    lookback = _LOOKBACK_SECONDS.get((name, severity), max(_LOOKBACK_SECONDS.values()))
    return Alert(name, severity, labels.get("tier", ""), lookback + LAG_SECONDS)
