"""An inference engine in virtual time: what one vLLM replica does, step by step.

Pure: no I/O, no clock, no randomness of its own and no knowledge of tenants. The caller adds
requests and calls ``Engine.step(now)``; the same calls give the same results. The discrete-event
simulator drives it in virtual time, the fake engine in real time.
"""

from tidegate.simulator.engine_model.calibrations import CALIBRATIONS, DRAFTS, Calibration
from tidegate.simulator.engine_model.config import EngineConfig
from tidegate.simulator.engine_model.engine import Engine
from tidegate.simulator.engine_model.hook import StepDecisions, StepHook
from tidegate.simulator.engine_model.kv_cache import KvCache
from tidegate.simulator.engine_model.request import EngineRequest, RequestState
from tidegate.simulator.engine_model.result import StepResult
from tidegate.simulator.engine_model.speculation import Speculation
from tidegate.simulator.engine_model.step_time import StepTimeModel
from tidegate.simulator.engine_model.waiting import SchedulingPolicy

__all__ = [
    "CALIBRATIONS",
    "DRAFTS",
    "Calibration",
    "Engine",
    "EngineConfig",
    "EngineRequest",
    "KvCache",
    "RequestState",
    "SchedulingPolicy",
    "Speculation",
    "StepDecisions",
    "StepHook",
    "StepResult",
    "StepTimeModel",
]
