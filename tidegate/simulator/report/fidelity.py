"""What of a run was ever compared with a real engine, and the table of that comparison.

``scripts/bench fidelity`` lays the engine model beside real vLLM: constants by a probe of that very
engine, three tiers by vLLM's own priority and first come first served, forced preemption, chunked
prefill. A run lies within that only if its engine was probed too, nothing but a stock vLLM decides,
and its requests are no longer than those compared; everything else is the model's word alone, and
:func:`outside` says in what respect. The bounds are those of ``benchmarks/fidelity_workloads.py``;
a test holds them to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tidegate.scheduling.contracts import ContractError, decode
from tidegate.scheduling.contracts.simulation_report import CheckedFigure, FidelityCheck
from tidegate.simulator.simulation.result import SimulationResult

MOST_PROMPT_TOKENS = 7_000
MOST_OUTPUT_TOKENS = 400
BENCHMARK = "fidelity"


def outside(
    result: SimulationResult, *, engine_measured: bool, stock_engine: bool
) -> tuple[str, ...]:
    """In what respects the run was never compared with a real engine; empty: in none."""
    found = []
    if not engine_measured:
        found.append("the engine's constants are published figures and no probe of this engine")
    if not stock_engine:
        found.append(f"{result.policy} decides in the place of a stock vLLM")
    prompt = max((record.prompt_tokens for record in result.records), default=0)
    if prompt > MOST_PROMPT_TOKENS:
        found.append(f"prompts of up to {prompt:,} tokens ({MOST_PROMPT_TOKENS:,} were compared)")
    output = max((record.output_tokens for record in result.records), default=0)
    if output > MOST_OUTPUT_TOKENS:
        found.append(f"answers of up to {output:,} tokens ({MOST_OUTPUT_TOKENS:,} were compared)")
    if any(record.cached_tokens for record in result.records):
        found.append("shared prefixes")
    return tuple(found)


def together(reasons: Iterable[tuple[str, ...]]) -> list[str]:
    """All of them, each once."""
    return list(dict.fromkeys(reason for one in reasons for reason in one))


def read_check(file: Path) -> FidelityCheck:
    """The report that ``scripts/bench fidelity --json FILE`` wrote; OSError, ContractError."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ContractError(f"not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("benchmark") != BENCHMARK:
        raise ContractError("no report of `scripts/bench fidelity --json FILE`")
    figures: Any = document.get("figures") or []
    if not isinstance(figures, list):
        raise ContractError("figures: expected a list")
    return FidelityCheck(
        measured_at=str(document.get("measured_at", "")),
        figures=tuple(_figure(one, place) for place, one in enumerate(figures)),
    )


def _figure(value: Any, place: int) -> CheckedFigure:
    if not isinstance(value, dict):
        raise ContractError(f"figures[{place}]: expected an object")
    aim = value.get("aim")
    fields = {name: value.get(name) for name in ("name", "value", "unit", "met", "why")}
    fields["aim"] = f"{aim.get('op')} {aim.get('value')}" if isinstance(aim, dict) else None
    return decode(CheckedFigure, fields, f"figures[{place}]")
