"""The promises of `tidegate simulate --slo`, in the place of those that the policy has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from tidegate.cli.errors import CommandError
from tidegate.scheduling.contracts import Policy
from tidegate.scheduling.contracts.limits import SloMetric, SloObjective

_METRICS = {
    "ttft": SloMetric.TIME_TO_FIRST_TOKEN,
    "e2e": SloMetric.END_TO_END,
    "itl": SloMetric.INTER_TOKEN_LATENCY,
}
_SLO = re.compile(
    r"(?P<tier>[^=]+)=(?P<metric>ttft|e2e|itl):(?P<value>[0-9.]+)(?P<unit>ms|s)"
    r"(?::(?P<percent>[0-9.]+))?"
)
_SLO_FORM = "expected TIER=ttft:800ms:99.5 (or e2e, itl; ms or s; the percent may be left out)"


def promised(policy: Policy, given: Sequence[str]) -> Policy:
    """The policy with the objectives of the command line, in the place of those it has."""
    objectives = {tier.name: {one.metric: one for one in tier.slo_objectives}
                  for tier in policy.tiers}  # fmt: skip
    for text in given:
        tier, objective = _objective(text)
        if tier not in objectives:
            raise CommandError(
                f"--slo: there is no tier {tier!r}; there are {', '.join(objectives)}", exit_code=2
            )
        objectives[tier][objective.metric] = objective
    tiers = tuple(
        replace(tier, slo_objectives=tuple(objectives[tier.name].values())) for tier in policy.tiers
    )
    return replace(policy, tiers=tiers)


def _objective(text: str) -> tuple[str, SloObjective]:
    match = _SLO.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        seconds = float(match["value"]) / (1000 if match["unit"] == "ms" else 1)
        percent = float(match["percent"]) if match["percent"] else 99.0
        if not 0 < seconds <= 86_400 or not 0 < percent <= 100:
            raise ValueError
    except ValueError:
        raise CommandError(f"--slo {text}: {_SLO_FORM}", exit_code=2) from None
    return match["tier"], SloObjective(_METRICS[match["metric"]], seconds, percent)
