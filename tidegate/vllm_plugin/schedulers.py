"""The two classes that ``--scheduler-cls`` may name; importing this imports vLLM.

vLLM picks its asynchronous scheduler by ``async_scheduling``; a class named by hand is taken as it
is, so one that does not match is refused: the plain class under async scheduling would lose the
overlap of steps and stop speculative decoding without a word.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

from vllm.sampling_params import SamplingParams  # type: ignore[import-not-found]
from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # type: ignore[import-not-found]
from vllm.v1.core.sched.output import (  # type: ignore[import-not-found]
    CachedRequestData,
    NewRequestData,
    SchedulerOutput,
)
from vllm.v1.core.sched.request_queue import (  # type: ignore[import-not-found]
    FCFSRequestQueue,
    SchedulingPolicy,
)
from vllm.v1.core.sched.scheduler import Scheduler  # type: ignore[import-not-found]
from vllm.v1.outputs import ModelRunnerOutput  # type: ignore[import-not-found]
from vllm.v1.request import Request  # type: ignore[import-not-found]

from tidegate.vllm_plugin import vllm_types as declared
from tidegate.vllm_plugin.guard import PluginRefused, check_hooks
from tidegate.vllm_plugin.mixin import TidegateMixin, new_steering
from tidegate.vllm_plugin.waiting_queue import PlannedQueue


class TidegateScheduler(TidegateMixin, Scheduler):  # type: ignore[misc]
    """vLLM's scheduler, steered; where async scheduling is off."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _start(self, is_async=False)


class TidegateAsyncScheduler(TidegateMixin, AsyncScheduler):  # type: ignore[misc]
    """vLLM's asynchronous scheduler, steered."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _start(self, is_async=True)


def _start(scheduler: Any, *, is_async: bool) -> None:
    if bool(scheduler.scheduler_config.async_scheduling) is not is_async:
        raise PluginRefused(
            "TidegateAsyncScheduler goes with async scheduling (vLLM's default on GPUs) and "
            "TidegateScheduler with --no-async-scheduling; this engine's setting is "
            f"async_scheduling={scheduler.scheduler_config.async_scheduling}."
        )
    manager = scheduler.kv_cache_manager
    request = Request("check", [0], SamplingParams(max_tokens=1), None)
    params = request.sampling_params
    tables = manager.coordinator.single_type_managers
    check_hooks(
        [
            (declared.VllmScheduler, Scheduler, scheduler),
            (declared.VllmQueue, FCFSRequestQueue, scheduler.waiting),
            (declared.VllmRequest, Request, request),
            (declared.VllmSamplingParams, SamplingParams, params),
            (declared.VllmKvCacheManager, type(manager), manager),
            (declared.VllmCoordinator, type(manager.coordinator), manager.coordinator),
            (declared.VllmBlockPool, type(manager.block_pool), manager.block_pool),
            (declared.VllmBlock, type(manager.block_pool.blocks[0]), manager.block_pool.blocks[0]),
            *((declared.VllmManager, type(table), table) for table in tables),
            (declared.VllmSchedulerOutput, SchedulerOutput, SchedulerOutput.make_empty()),
            (declared.VllmCachedRequests, CachedRequestData, CachedRequestData.make_empty()),
            (declared.VllmNewRequest, NewRequestData, _fields(NewRequestData)),
            (declared.VllmModelOutput, ModelRunnerOutput, _fields(ModelRunnerOutput)),
        ]
    )
    # Its order and its victims are the plan's; first-come-first-served, vLLM takes running[-1].
    scheduler.policy = SchedulingPolicy.FCFS
    scheduler.waiting = PlannedQueue(scheduler.tidegate_joins, scheduler.tidegate_leaves)
    scheduler._steer(new_steering(scheduler))


def _fields(kind: Any) -> SimpleNamespace:
    """An object with the fields of a dataclass that is not made by hand."""
    return SimpleNamespace(**{field.name: None for field in dataclasses.fields(kind)})
