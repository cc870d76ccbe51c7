"""The scheduler plug-in that vLLM loads.

``vllm serve --scheduler-cls tidegate.vllm_plugin.TidegateAsyncScheduler`` (``TidegateScheduler``
where async scheduling is off) ``--additional-config '{"tidegate": {"policy": "PATH"}}'``. vLLM is
imported when one of the two is asked for and not before: the rest of Tidegate has no vLLM.

Theory of operation: vLLM keeps its own scheduling loop. Before each step the plug-in tells the
core's step planner what it finds and does what the plan says through five hooks of vLLM's class:
preempt before ``schedule()``, the order of the running list, a clip of one request's tokens, the
part of the waiting queue that a step sees, and what is un-hashed before it is freed. Nothing of
vLLM's code is copied.
"""

from __future__ import annotations

from typing import Any

__all__ = ["TidegateAsyncScheduler", "TidegateScheduler"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tidegate.vllm_plugin.guard import check_version

    check_version()
    from tidegate.vllm_plugin import schedulers

    return getattr(schedulers, name)
