"""What the operator says of itself on ``/metrics``."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tidegate_operator import __version__


class Metrics:
    """The operator's metrics, in a registry of their own; all exist at zero from the start."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leader = Gauge(
            "tidegate_operator_leader",
            "1 while this process is the leader.",
            registry=self.registry,
        )
        self.last_resync = Gauge(
            "tidegate_operator_last_resync_timestamp_seconds",
            "When everything was last listed and looked at.",
            registry=self.registry,
        )
        self.queue_depth = Gauge(
            "tidegate_operator_queue_depth",
            "Objects that wait for a worker.",
            registry=self.registry,
        )
        self.reconciles = Counter(
            "tidegate_operator_reconciles_total",
            "Reconciles by result.",
            ["result"],
            registry=self.registry,
        )
        self.reconcile_seconds = Histogram(
            "tidegate_operator_reconcile_seconds", "Of one reconcile.", registry=self.registry
        )
        self.applies = Counter(
            "tidegate_operator_applies_total",
            "Writes of children by kind.",
            ["kind"],
            registry=self.registry,
        )
        self.status_writes = Counter(
            "tidegate_operator_status_writes_total",
            "Writes of status by kind.",
            ["kind"],
            registry=self.registry,
        )
        self.pushes = Counter(
            "tidegate_operator_policy_pushes_total",
            "Policies that sidecars took.",
            registry=self.registry,
        )
        self.sidecar_failures = Counter(
            "tidegate_operator_sidecar_failures_total",
            "Requests to sidecars that failed.",
            registry=self.registry,
        )
        self.watch_restarts = Counter(
            "tidegate_operator_watch_restarts_total",
            "Starts of the watches, the first included.",
            registry=self.registry,
        )
        for result in ("ok", "error"):
            self.reconciles.labels(result)
        Gauge(
            "tidegate_operator_build_info", "Version.", ["version"], registry=self.registry
        ).labels(__version__).set(1)
