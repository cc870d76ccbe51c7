"""What a request is expected to cost before it has run, in each currency.

``pace`` is the engine's where the host reports its steps: then the tiers' currency is EngineTime in
milliseconds, else tokens (unset). The tenant's is its tier's fairness unit.

A request is charged at dispatch, when its output length is not known. What is charged then is the
*mean* of the tenant's last 32 output lengths (the tier's mean until there are some, then a prior):
fair sums need means, while quantiles belong to deadlines and KV projections. Charging nothing until
the output shows would let one tenant fill the engine before its first token is counted; charging
the most it may produce would punish a client that leaves ``max_tokens`` alone.

Bound: no charge is above that of the most output which the request may produce. What it is off by
lasts no longer than the request: ``ledger`` corrects it while it streams and settles it at the end.
O(1). Source: design section 6 (cost, deficit round robin); VTC's variant that predicts a client's
output from its last ones (Sheng et al., OSDI 2024).
"""

from __future__ import annotations

from tidegate.scheduling.contracts import FairnessUnit
from tidegate.scheduling.engine_time import EnginePace
from tidegate.scheduling.request import Request
from tidegate.scheduling.state import TenantState
from tidegate.scheduling.tenant_averages import expected_cached_tokens, expected_tokens_per_step

PRIOR_OUTPUT_TOKENS = 256
"""Assumed where neither the tenant nor its tier has finished a request yet."""


def expected_output_tokens(request: Request, tenant: TenantState) -> float:
    """The mean of its tenant's outputs, but no more than it may produce."""
    mean = tenant.output_mean.tokens
    if mean is None:
        mean = tenant.tier.output_mean.tokens
    if mean is None:
        mean = PRIOR_OUTPUT_TOKENS
    return min(mean, request.max_output_tokens)


def engine_ms(
    pace: EnginePace, request: Request, tenant: TenantState, output_tokens: float
) -> float:
    """EngineTime of a request with so much output, in milliseconds."""
    mine, tiers = tenant.averages, tenant.tier.averages
    return 1e3 * pace.engine_seconds(
        request.prompt_tokens,
        output_tokens,
        expected_cached_tokens(request.prompt_tokens, mine, tiers),
        expected_tokens_per_step(mine, tiers),
    )


def expected_cost(pace: EnginePace | None, request: Request, tenant: TenantState) -> float:
    """What it will have cost its tier."""
    output_tokens = expected_output_tokens(request, tenant)
    if pace is None:
        return request.prompt_tokens + output_tokens
    return engine_ms(pace, request, tenant, output_tokens)


def prefill_ratio(pace: EnginePace | None, request: Request, tenant: TenantState) -> float:
    """How much of what it will have cost is its prefill, 0..1."""
    whole = expected_cost(pace, request, tenant)
    prefill = request.prompt_tokens if pace is None else engine_ms(pace, request, tenant, 1.0)
    return min(prefill / whole, 1.0) if whole > 0 else 1.0


def exchange_rate(pace: EnginePace | None, request: Request, tenant: TenantState) -> float:
    """What one of the units in which its tenant is charged costs its tier."""
    unit, cost = tenant.tier.unit, expected_cost(pace, request, tenant)
    if unit is FairnessUnit.REQUESTS:
        return cost
    if unit is FairnessUnit.ENGINE_TIME or pace is None:
        return 1.0
    return cost / max(request.prompt_tokens + expected_output_tokens(request, tenant), 1.0)
