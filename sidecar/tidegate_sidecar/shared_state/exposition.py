"""Metrics of the shared state; there, at zero, where the policy names no server too."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from tidegate_sidecar.shared_state.host import SharedStateHost


def shared_state_metrics(host: SharedStateHost) -> Iterator[Metric]:
    """Whether it is there, and what was done without it."""
    status = host.status
    yield GaugeMetricFamily(
        "tidegate_shared_state_configured", "Pods are to count together.", value=status is not None
    )
    yield GaugeMetricFamily(
        "tidegate_shared_state_available",
        "The server in which pods count together answers.",
        value=status is not None and status.available,
    )
    yield GaugeMetricFamily(
        "tidegate_shared_state_pending",
        "Counts that the server was not told yet.",
        value=host.pending,
    )
    yield CounterMetricFamily(
        "tidegate_shared_state_local",
        "Requests whose limits were counted without the server.",
        value=host.alone_total,
    )
