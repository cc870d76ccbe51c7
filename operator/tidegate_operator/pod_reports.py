"""What the pods of a pool last told of themselves that a person should know. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.scheduling.contracts import SidecarStatus, TrafficSample
from tidegate_operator.pool_state import PodState

Told = Iterable[tuple[PodState, SidecarStatus]]
"""Ready pods, and what each told last."""


def cut_off(told: Told) -> tuple[str, ...]:
    """Pods that do not reach their shared state, and why."""
    return tuple(
        f"pod {pod.name}: {shared.error or 'not available'}"
        for pod, status in told
        if (shared := status.shared_state) is not None and not shared.available
    )


def unread_engines(told: Told) -> tuple[str, ...]:
    """Pods whose engine has not said for a minute how full it is, and what its metrics lack."""
    return tuple(
        f"pod {pod.name}: {status.engine.metrics_error}"
        for pod, status in told
        if status.engine is not None and status.engine.metrics_error is not None
    )


def samples(told: Told) -> list[tuple[str, TrafficSample]]:
    """The newest sample of slow traffic of each pod that took one, by the pod's name."""
    return [(pod.name, status.last_sample) for pod, status in told if status.last_sample]
