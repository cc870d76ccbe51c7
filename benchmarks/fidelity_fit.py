"""Step-time constants of real vLLM on this machine, from the steps of a probe alone.

A step's time is a line in what it computes: its tokens, its sequences, the context its decodes
read, its prefill pairs, and whether it prefills at all. The line is fitted by least relative error:
absolute errors, each over the step's own time, so that neither long steps nor the spikes of a busy
machine decide (iteratively reweighted least squares, non-negative by coordinate descent). Steps
that are alike to within a factor of two in every part count as one together: a probe has many
steps of one decode and few of long contexts, and the line is to hold for both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy
from fidelity_log import Step, percentile
from fidelity_model import Frontend
from numpy.typing import NDArray

from tidegate.simulator.engine_model import StepTimeModel

_ROUNDS = 25
_SWEEPS = 200
_LEAST_ERROR = 1e-3

Vector = NDArray[numpy.float64]


def features(step: Step) -> tuple[float, ...]:
    """In the order of the constants that `fit_steps` unpacks."""
    return (
        1.0, float(step.attention_pairs > 0), step.tokens, len(step.rows), step.kv_tokens_read,
        step.attention_pairs,
    )  # fmt: skip


def _kind(step: Step) -> tuple[int, ...]:
    """The same for steps alike to within a factor of two."""
    return tuple(int(value).bit_length() for value in features(step))


def fit_steps(steps: Sequence[Step]) -> StepTimeModel:
    """The constants. ValueError: too few steps."""
    if len(steps) < 20:
        raise ValueError(f"{len(steps)} steps are too few to fit a line to")
    times = numpy.array([step.duration_seconds for step in steps])
    kinds = [_kind(step) for step in steps]
    counts = Counter(kinds)
    shares = numpy.array([1 / counts[kind] for kind in kinds])
    constants = _least_relative_error(
        numpy.array([features(step) for step in steps]), times, shares
    )
    overhead, prefill, per_token, per_row, per_kv_token, per_pair = (float(c) for c in constants)
    return StepTimeModel(
        overhead_seconds=overhead,
        floor_seconds=0.0,
        base_seconds=0.0,
        per_token_seconds=per_token,
        per_kv_token_seconds=per_kv_token,
        per_pair_seconds=per_pair,
        per_row_seconds=per_row,
        prefill_seconds=prefill,
    )


def step_seconds(model: StepTimeModel, step: Step) -> float:
    """What the model says of a step that vLLM ran."""
    return model.seconds(step.tokens, step.kv_tokens_read, step.attention_pairs, len(step.rows))


def step_errors_percent(model: StepTimeModel, steps: Sequence[Step]) -> tuple[float, float]:
    """Median error of one step, and error of all together; percent of the real time."""
    each = [100 * abs(step_seconds(model, step) / step.duration_seconds - 1) for step in steps]
    whole = sum(step_seconds(model, step) for step in steps)
    return percentile(each, 50), 100 * (whole / sum(s.duration_seconds for s in steps) - 1)


def fit_frontend(idle_starts: Sequence[tuple[int, float]]) -> Frontend:
    """From arrivals that found the engine idle. ValueError: there were too few."""
    if len(idle_starts) < 5:
        raise ValueError(f"{len(idle_starts)} arrivals at an idle engine are too few")
    rows = numpy.array([(1.0, tokens) for tokens, _ in idle_starts])
    seconds = numpy.array([max(wait, 1e-6) for _, wait in idle_starts])
    base, per_token = _least_relative_error(rows, seconds, numpy.ones(len(rows)))
    return Frontend(float(base), float(per_token))


def _least_relative_error(rows: Vector, wanted: Vector, shares: Vector) -> Vector:
    """Non-negative constants that minimise the sum of shares * |rows @ constants / wanted - 1|."""
    relative = rows / wanted[:, None]
    scale = relative.max(axis=0)
    scale[scale == 0] = 1.0
    relative = relative / scale
    constants = numpy.zeros(relative.shape[1])
    weights = shares
    for _ in range(_ROUNDS):
        constants = _non_negative(relative, weights, constants)
        errors = numpy.abs(relative @ constants - 1)
        weights = shares / numpy.maximum(errors, _LEAST_ERROR)
    return constants / scale


def _non_negative(rows: Vector, weights: Vector, start: Vector) -> Vector:
    """Non-negative weighted least squares to 1, by coordinate descent."""
    weighted = rows * weights[:, None]
    gram, target = rows.T @ weighted, weighted.sum(axis=0)
    constants = start.copy()
    for _ in range(_SWEEPS):
        for index in range(len(constants)):
            if gram[index, index] > 0:
                rest = (
                    target[index] - gram[index] @ constants + gram[index, index] * constants[index]
                )
                constants[index] = max(rest / gram[index, index], 0.0)
    return constants
