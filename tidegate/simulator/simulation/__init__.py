"""Requests, policies and engines together in virtual time: seeded, and the same every time."""

from tidegate.simulator.simulation.result import (
    EngineSummary,
    RequestRecord,
    SimulationResult,
    TimeSample,
    percentile,
)

__all__ = [
    "EngineSummary",
    "RequestRecord",
    "SimulationResult",
    "TimeSample",
    "percentile",
]
