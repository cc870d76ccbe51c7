"""The options of `tidegate simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli import simulate_systems as systems
from tidegate.scheduling.contracts import BuiltInWorkload

_MOST_SECONDS = 1_000_000
"""Of virtual time, as in a scenario."""
_MOST_GPUS = 10_000
_MOST_PRICE = 1_000_000
_MOST_SEED = 2**53 - 1
"""The largest that the report's readers take."""

Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help="Manifests (TenantTier, Tenant, ServingPool, Namespace), folders of them, or a "
        "policy.json.",
    ),
]
WorkloadName = Annotated[
    str,
    typer.Option(
        help=f"A scenario file as for `tidegate load`, or one of {', '.join(BuiltInWorkload)}."
    ),
]
PolicyName = Annotated[
    str | None,
    typer.Option(
        help=f"What schedules: {', '.join(systems.POLICIES)}. Unset: tidegate, or fcfs where "
        "the pool's schedulingMode says so."
    ),
]
Compared = Annotated[
    list[str] | None,
    typer.Option(metavar="POLICY", help="Simulate this one too. Repeatable; commas do too."),
]
PoolName = Annotated[
    str | None, typer.Option(metavar="NAME", help="Which ServingPool, where there are several.")
]
CalibrationName = Annotated[
    str, typer.Option(help="The engine's constants: a name or a JSON file.")
]
Gpus = Annotated[
    int | None,
    typer.Option(min=1, max=_MOST_GPUS, help="GPUs of the engine; unset: as the calibration says."),
]
GpuHour = Annotated[
    float | None,
    typer.Option(metavar="PRICE", min=0, max=_MOST_PRICE, help="Price of one GPU for one hour."),
]
Slos = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TIER=METRIC:TARGET[:PERCENT]",
        help="A latency objective, such as t0=ttft:800ms:99.5 (ttft, e2e or itl). Repeatable.",
    ),
]
Duration = Annotated[
    float | None,
    typer.Option(
        min=1,
        max=_MOST_SECONDS,
        help="Seconds of virtual time measured; unset: the workload's own.",
    ),
]
Warmup = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=_MOST_SECONDS,
        help="Seconds of it left out at the start; unset: the workload's own.",
    ),
]
Drain = Annotated[
    float,
    typer.Option(
        min=0, max=_MOST_SECONDS, help="Seconds simulated after it, so that the last may end."
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(min=0, max=_MOST_SEED, help="Of everything random; unset: the workload's own."),
]
FidelityFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="What `scripts/bench fidelity --json FILE` wrote, to stand first."
    ),
]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the report here as JSON.")
]
HtmlFile = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write a page with plots here, self-contained."),
]
