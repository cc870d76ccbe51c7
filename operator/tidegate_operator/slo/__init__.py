"""What a pool promises its tiers, as rules for Prometheus: pure.

The sidecars count each request that has a promise, and each that kept it
(``tidegate_slo_requests_total`` and ``tidegate_slo_good_total``, by tier and objective), against
the target in force. From those two counters come error ratios over several windows, the error
budget, how fast it burns, and the alerts (:mod:`tidegate_operator.slo.rules`).
"""

from tidegate_operator.slo.rules import prometheus_rule, rule_groups

__all__ = ["prometheus_rule", "rule_groups"]
