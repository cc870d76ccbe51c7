"""What the operator says of itself on ``/metrics``."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tidegate_operator import __version__


class Metrics:
    """The operator's metrics, in a registry of their own; all exist at zero from the start."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        gauge = partial(Gauge, registry=self.registry)
        counter = partial(Counter, registry=self.registry)
        self.leader = gauge("tidegate_operator_leader", "1 while this process is the leader.")
        self.last_resync = gauge(
            "tidegate_operator_last_resync_timestamp_seconds",
            "When everything was last listed and looked at.",
        )
        self.queue_depth = gauge("tidegate_operator_queue_depth", "Objects that wait for a worker.")
        self.reconciles = counter(
            "tidegate_operator_reconciles_total", "Reconciles by result.", ["result"]
        )
        self.reconcile_seconds = Histogram(
            "tidegate_operator_reconcile_seconds", "Of one reconcile.", registry=self.registry
        )
        self.applies = counter(
            "tidegate_operator_applies_total", "Writes of children by kind.", ["kind"]
        )
        self.status_writes = counter(
            "tidegate_operator_status_writes_total", "Writes of status by kind.", ["kind"]
        )
        self.pushes = counter(
            "tidegate_operator_policy_pushes_total", "Policies that sidecars took."
        )
        self.sidecar_failures = counter(
            "tidegate_operator_sidecar_failures_total", "Requests to sidecars that failed."
        )
        self.watch_restarts = counter(
            "tidegate_operator_watch_restarts_total", "Starts of the watches, the first included."
        )
        for result in ("ok", "error"):
            self.reconciles.labels(result)
        version = gauge("tidegate_operator_build_info", "Version.", ["version"])
        version.labels(__version__).set(1)
