"""What a Prometheus says of one pool's promises: asked in bounded time, believed only when fresh.

Theory of operation. A few instant queries: the error ratios of the pool's own recording rules over
five minutes and an hour, when the former were last recorded, and the pool's alerts that fire. That
no alert fires is news only where the rules are evaluated on data, so all of it rests on the ratios:
where those of one objective in force are not known, nothing is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from tidegate.scheduling.contracts import TierPolicy
from tidegate_operator.autoscale.signals import LAG_SECONDS, Alert, Burn
from tidegate_operator.prometheus_query import answered, ask_recorded, pool_selector, query
from tidegate_operator.slo.recorded import Recorded
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
    found = await answered(_ask(session, address, pool, now_seconds), pool)
    return Told(found, found) if isinstance(found, str) else interpret(*found, tiers)


async def _ask(
    session: aiohttp.ClientSession, address: str, pool: str, now_seconds: float
) -> tuple[Recorded, Sequence[Json]]:
    ratios = await ask_recorded(session, address, pool, (_SHORT, _LONG), now_seconds)
    alerts = f'alertstate="firing",alertname=~"{BUDGET_ALERT}|{BASELINE_ALERT}"'
    return ratios, await query(session, address, f"ALERTS{{{alerts},{pool_selector(pool)}}}")


def interpret(ratios: Recorded, firing: Sequence[Json], tiers: Sequence[TierPolicy]) -> Told:
    """What the error ratios over both windows and the alerts that fire, an instant vector, amount
    to."""
    burns = []
    for tier in tiers:
        for objective in tier.slo_objectives:
            key = tier.name, str(objective.metric)
            found = ratios.of(key)
            if isinstance(found, str):
                return Told(found, found)
            budget = max(1e-9, 1 - objective.ratio_percent / 100)
            short, long = (ratio / budget for ratio in found)
            burns.append(Burn(*key, short, long))
    if not burns:
        why = "no tier is promised anything"
        return Told(why, why)
    return Told(burns, [_alert(sample["metric"]) for sample in firing])


def _alert(labels: Mapping[str, str]) -> Alert:
    name, severity = labels.get("alertname", ""), labels.get("severity", "")
    lookback = _LOOKBACK_SECONDS.get((name, severity), max(_LOOKBACK_SECONDS.values()))
    return Alert(name, severity, labels.get("tier", ""), lookback + LAG_SECONDS)
