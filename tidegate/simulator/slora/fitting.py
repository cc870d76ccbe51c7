"""Where the A10G's constants in ``engine_model.calibrations`` come from; to redo the fits:

    TIDEGATE_TRACES=FOLDER python -m tidegate.simulator.slora.fitting

Two fits, each on a file of VTC's artifact:

* *profile*: linear least squares of relative errors on ``cost_profile.json``, the forward passes
  alone, timed without a server. Only rows with at most 160 sequences, since no run here has more
  and the kernels' cost is not linear up to 1,100.
* *first come*: Nelder and Mead's simplex (The Computer Journal 7, 1965) minimises the mean error
  of first and last token over the requests of the published **FCFS** run alone. Every other
  policy's run is then a prediction, and so is every gap.

What the profile lacks is the server: Python, RPC and detokenization add milliseconds to steps,
prefills and requests. How they divide is a shallow valley of the error with several bottoms, so the
simplex starts from the profile with four guesses of them; the best end is the start of one more.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import Pool
from pathlib import Path

import numpy as np

from tidegate.simulator.service_gap import ServedRequest
from tidegate.simulator.slora.counters import FirstComeFirstServed
from tidegate.simulator.slora.engine import Engine
from tidegate.simulator.slora.published import FOLDER, read_run
from tidegate.simulator.slora.request import jobs_of
from tidegate.simulator.slora.timing import CONSTANTS, Timing

MOST_SEQUENCES = 160
_Point = np.ndarray[tuple[int], np.dtype[np.float64]]
_SCALES = (0.02, 2e-4, 1e-6, 2e-4, 0.02, 0.02, 0.05)
"""About the size of each constant, in the order of Timing, for the simplex' first steps."""


def fit_profile(path: Path) -> Timing:
    """The constants of the forward passes; zero for what the profile does not cover."""
    prefill_tokens, prefill_seconds = [], []
    decode_rows, decode_seconds = [], []
    for prompt, by_output in json.loads(path.read_text()).items():
        for output, (sequences, prefill_each, decode_each) in by_output.items():
            if sequences > MOST_SEQUENCES:
                continue
            prefill_tokens.append(int(prompt) * sequences)
            prefill_seconds.append(prefill_each * sequences)
            steps = int(output)
            kv_tokens = sequences * (int(prompt) * steps + steps * (steps + 1) / 2)
            decode_rows.append((steps, steps * sequences, kv_tokens))
            decode_seconds.append(decode_each * sequences)
    (per_token,) = _relative_least_squares([[each] for each in prefill_tokens], prefill_seconds)
    per_step, per_sequence, per_kv_token = _relative_least_squares(decode_rows, decode_seconds)
    return Timing(per_step, per_sequence, per_kv_token, per_token)


def fit_first_come(run: Sequence[ServedRequest], profile: Timing) -> tuple[Timing, float]:
    """The constants that explain the run best, and the mean error that is left, in seconds."""
    starts = [
        (run, replace(profile, per_prefill_seconds=batch, per_request_seconds=request,
                      client_seconds=0.05))
        for batch in (0.0, 0.03)
        for request in (0.01, 0.025)
    ]  # fmt: skip
    with Pool() as pool:
        fits = pool.starmap(_descend, starts)
    return _descend(run, min(fits, key=lambda fit: fit[1])[0])


def _descend(run: Sequence[ServedRequest], start: Timing) -> tuple[Timing, float]:
    def timing(point: Sequence[float]) -> Timing:
        return Timing(*(x * scale for x, scale in zip(point, _SCALES, strict=True)))

    def error(point: Sequence[float]) -> float:
        return mean_error(run, timing(point)) if min(point) >= 0 else math.inf

    first = [getattr(start, name) / scale for name, scale in zip(CONSTANTS, _SCALES, strict=True)]
    best, left = nelder_mead(error, first)
    return timing(best), left


def mean_error(run: Sequence[ServedRequest], timing: Timing) -> float:
    """Mean distance of first and last tokens from those of a first-come run, in seconds."""
    model = Engine(timing, FirstComeFirstServed()).run(jobs_of(run))
    total = 0.0
    for real, simulated in zip(run, model, strict=True):
        for one, other in (
            (real.first_token, simulated.first_token),
            (real.finished, simulated.finished),
        ):
            assert one is not None
            assert other is not None
            total += abs(one - other)
    return total / (2 * len(run))


def nelder_mead(
    function: Callable[[Sequence[float]], float],
    start: Sequence[float],
    spread: float = 0.5,
    evaluations: int = 350,
) -> tuple[list[float], float]:
    """The downhill simplex: the best point found within so many evaluations, and its value."""
    size = len(start)
    points: list[_Point] = [np.array(start, dtype=float)]
    for axis in range(size):
        points.append(points[0].copy())
        points[-1][axis] += spread
    simplex = [_evaluated(function, point) for point in points]
    used = len(simplex)
    while used < evaluations:
        simplex.sort(key=lambda each: each[0])
        worst, point = simplex[-1]
        centre = np.mean([each[1] for each in simplex[:-1]], axis=0)
        reflected = _evaluated(function, centre + (centre - point))
        used += 1
        if reflected[0] < simplex[0][0]:
            expanded = _evaluated(function, centre + 2 * (centre - point))
            used += 1
            simplex[-1] = min(reflected, expanded, key=lambda each: each[0])
        elif reflected[0] < simplex[-2][0]:
            simplex[-1] = reflected
        else:
            towards = reflected[1] if reflected[0] < worst else point
            contracted = _evaluated(function, centre + 0.5 * (towards - centre))
            used += 1
            if contracted[0] < min(worst, reflected[0]):
                simplex[-1] = contracted
            else:
                best = simplex[0][1]
                shrunk = [_evaluated(function, best + 0.5 * (p - best)) for _, p in simplex[1:]]
                simplex[1:] = shrunk
                used += size
    value, point = min(simplex, key=lambda each: each[0])
    return [float(each) for each in point], value


def _evaluated(function: Callable[[Sequence[float]], float], point: _Point) -> tuple[float, _Point]:
    return function([float(each) for each in point]), point


def _relative_least_squares(
    rows: Sequence[Sequence[float]], values: Sequence[float]
) -> list[float]:
    target = np.array(values)
    matrix = np.array(rows, dtype=float) / target[:, None]
    solution = np.linalg.lstsq(matrix, np.ones(len(target)), rcond=None)[0]
    return [float(each) for each in solution]


def main() -> int:
    """Print both fits."""
    traces = os.environ.get("TIDEGATE_TRACES")
    if not traces:
        print("set TIDEGATE_TRACES to the folder of the traces", file=sys.stderr)
        return 2
    folder = Path(traces) / FOLDER
    profile = fit_profile(folder / "cost_profile.json")
    print("profile:", profile)
    fitted, error = fit_first_come(read_run(folder / "real_FCFS.jsonl"), profile)
    print("first come:", fitted)
    print(f"mean error left: {error:.2f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
