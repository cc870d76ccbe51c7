"""How a pool is watched."""

from __future__ import annotations

from tidegate_operator.api.common import LabelValue
from tidegate_operator.api.fields import ApiModel, described


class ObservabilitySpec(ApiModel):
    """What measures the pool, and how."""

    rule_labels: dict[str, LabelValue] | None = described(
        "Labels of the pool's PrometheusRule, as the Prometheus that shall load it selects rules, "
        "such as `release: kube-prometheus-stack`. Those that the operator sets itself stay.",
        unset="only the operator's own",
        max_length=16,
    )
