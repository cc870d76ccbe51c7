"""The two sets of constants of the S-LoRA loop, each with its source and date: the one place.

Both are of Llama-2-7B on one A10G with a KV pool of 10,000 tokens, and both come out of
``fitting``, which anybody with the traces can run again. **Neither saw a number that a figure
reports**: ``COST_PROFILE`` saw timed forward passes, ``FIRST_COME_FIT`` the first and last tokens
of the published first-come run and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.simulator.slora.timing import Timing


@dataclass(frozen=True, slots=True)
class Calibration:
    """Constants and where they come from."""

    timing: Timing
    source: str


COST_PROFILE = Calibration(
    Timing(
        per_step_seconds=0.02302,
        per_sequence_seconds=1.817e-4,
        per_kv_token_seconds=1.357e-6,
        per_prompt_token_seconds=2.263e-4,
    ),
    "relative least squares on the rows of at most 160 sequences of Ying1123/VTC-artifact @ "
    "192c2e20, fair_bench/cost_profile.json; fitted 2026-11-30",
)

FIRST_COME_FIT = Calibration(
    Timing(
        per_step_seconds=0.02340,
        per_sequence_seconds=2.052e-4,
        per_kv_token_seconds=1.395e-6,
        per_prompt_token_seconds=2.455e-4,
        per_prefill_seconds=0.001348,
        per_request_seconds=0.02687,
        client_seconds=0.05056,
    ),
    "simplex on the first and last tokens of Ying1123/VTC-artifact @ 192c2e20, FCFS run of the "
    "real trace alone, begun at COST_PROFILE; mean error left 1.45 s of latencies around 50 s; "
    "fitted 2026-11-30",
)
