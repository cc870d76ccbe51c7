"""The systems that serve the mixed node: vLLM's policies, rivals, ours and its variations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tidegate.scheduling.contracts import PrefillLimits
from tidegate.simulator.engine_model import DRAFTS, Calibration, Speculation
from tidegate.simulator.engine_model.calibrations import KV_CAPACITY
from tidegate.simulator.simulation.node_policy import node_policy, one_engine, split
from tidegate.simulator.simulation.plugin import PluginOptions
from tidegate.simulator.simulation.system import Scheduling, System
from tidegate.workload.clients.client import Workload

DRAFT_TOKENS = 3
OURS = "Tidegate"
OURS_100 = "Tidegate, steps <= 100 ms"
OURS_80 = "Tidegate, steps <= 80 ms"
OURS_60 = "Tidegate, steps <= 60 ms"
AS_TIME = "Tidegate, budget as time"
FCFS = "vLLM FCFS"
AMPLE_TIMES = 3
AMPLE = f"vLLM FCFS, {AMPLE_TIMES} x the KV cache"


def single(
    scheduling: Scheduling,
    name: str,
    calibration: Calibration,
    work: Workload,
    *,
    batched_tokens: int = 8_192,
    plugin: PluginOptions | None = None,
    prefill: PrefillLimits | None = None,
) -> System:
    """One TP8 engine for all."""
    return one_engine(
        scheduling,
        node_policy(work, prefill=prefill),
        calibration,
        name=name,
        max_num_batched_tokens=batched_tokens,
        plugin=plugin,
    )


def apart(parts: tuple[tuple[str, ...], ...], calibration: Calibration, work: Workload) -> System:
    """Engines of four GPUs for some tiers each, first come first served: the static partition."""
    return split(Scheduling.FCFS, node_policy(work), parts, calibration)


def by_draft(work: Workload) -> System:
    """Two TP4 engines under our policy: T0 and T1 with a chat draft; T2 with a code one, and T3."""
    parts = (("t0", "t1"), ("t2", "t3"))
    system = split(Scheduling.TIDEGATE, node_policy(work), parts)
    chat, code = (Speculation.head(DRAFTS[name], DRAFT_TOKENS) for name in ("chat_tp4", "code_tp4"))
    groups = (
        replace(system.groups[0], speculation=chat),
        replace(system.groups[1], speculation=code, drafted_tiers=frozenset({"t2"})),
    )
    return System("Tidegate, 2 x TP4 by draft", groups)


def ample(calibration: Calibration, work: Workload) -> System:
    """First come first served with so much KV cache that no prefix is ever lost: what a cache can
    give at most."""
    return single(
        Scheduling.FCFS, AMPLE, calibration.scaled_constant(KV_CAPACITY, AMPLE_TIMES), work
    )


SINGLE: dict[str, Callable[[Calibration, Workload], System]] = {
    FCFS: partial(single, Scheduling.FCFS, FCFS),
    AMPLE: ample,
    "vLLM FCFS, 2,048": partial(single, Scheduling.FCFS, "vLLM FCFS, 2,048", batched_tokens=2_048),
    "vLLM priority": partial(single, Scheduling.PRIORITY, "vLLM priority"),
    "vLLM priority, 2,048": partial(
        single, Scheduling.PRIORITY, "vLLM priority, 2,048", batched_tokens=2_048
    ),
    "VTC": partial(single, Scheduling.VTC, "VTC"),
    "source 000": partial(single, Scheduling.SOURCE_000, "source 000"),
    "Tidegate without plug-in": partial(single, Scheduling.SIDECAR, "Tidegate without plug-in"),
    "Tidegate without pauses": partial(
        single, Scheduling.TIDEGATE, "Tidegate without pauses", plugin=PluginOptions(pause=False)
    ),
    AS_TIME: partial(
        single, Scheduling.TIDEGATE, AS_TIME, plugin=PluginOptions(knows_step_time=True)
    ),
    OURS: partial(single, Scheduling.TIDEGATE, OURS),
    OURS_100: partial(
        single, Scheduling.TIDEGATE, OURS_100, plugin=PluginOptions(step_seconds_cap=0.100)
    ),
    OURS_80: partial(
        single, Scheduling.TIDEGATE, OURS_80, plugin=PluginOptions(step_seconds_cap=0.080)
    ),
    OURS_60: partial(
        single, Scheduling.TIDEGATE, OURS_60, plugin=PluginOptions(step_seconds_cap=0.060)
    ),
}
