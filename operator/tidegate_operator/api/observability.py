"""How a pool is watched."""

from __future__ import annotations

from typing import Annotated

from pydantic import StringConstraints

from tidegate_operator.api.common import LabelValue
from tidegate_operator.api.fields import ApiModel, described


class OtlpSpec(ApiModel):
    """Where the sidecars send OpenTelemetry spans: one for each request, its wait in the queue and
    its time in the engine below it, with tenant, tier, tokens and times, and no content."""

    endpoint: Annotated[
        str,
        StringConstraints(
            min_length=1, max_length=2048, pattern=r"^https?://[^/?#@\s]+(/[^?#\s]*)?$"
        ),
    ] = described(
        "URL to which spans are posted, OTLP over HTTP, such as "
        "http://otel-collector.monitoring:4318/v1/traces."
    )
    sample_percent: int | None = described(
        "Of the requests without a `traceparent` of their client's, how many are traced; where "
        "there is one, its sampled flag decides.",
        unset="100",
        zero="only those whose client asks for it",
        ge=0,
        le=100,
    )


class ObservabilitySpec(ApiModel):
    """What measures the pool, and how."""

    prometheus: (
        Annotated[
            str,
            StringConstraints(
                min_length=1, max_length=512, pattern=r"^https?://[^/?#@\s]+(/[^?#\s]*)?$"
            ),
        ]
        | None
    ) = described(
        "Base URL of a Prometheus that loads the pool's rules and scrapes its pods, such as "
        "http://prometheus.monitoring:9090. The operator asks it for the error budgets in the "
        "status, for the condition SLOMet, and for `autoscaling`.",
        unset="none is asked",
    )
    rule_labels: dict[str, LabelValue] | None = described(
        "Labels of the pool's PrometheusRule, as the Prometheus that shall load it selects rules, "
        "such as `release: kube-prometheus-stack`. Those that the operator sets itself stay.",
        unset="only the operator's own",
        max_length=16,
    )
    otlp: OtlpSpec | None = described(
        "OpenTelemetry spans. Takes effect within seconds and restarts nothing.",
        unset="nothing is traced",
    )
