"""Work of several requests, or of several steps, as one."""

from __future__ import annotations

from tidegate.scheduling.step_time_fit import StepWork


def together(*works: StepWork) -> StepWork:
    """Their sum."""
    return StepWork(*map(sum, zip(*works, strict=True)))
