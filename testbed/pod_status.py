"""The status of a pod whose kubelet is played by whoever writes it."""

from __future__ import annotations

import time
from typing import Any

from tidegate_operator.conditions import timestamp


def running(address: str) -> dict[str, Any]:
    """Of one that runs and is ready at this address, as a kubelet would say it now."""
    now = timestamp(time.time())
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": now}
            for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ],
    }
