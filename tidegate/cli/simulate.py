"""`tidegate simulate`: what a policy and a mix of tenants would do, before it is rolled out."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Annotated

import typer
from rich import progress as bars
from rich.console import Console

from tidegate.cli import simulate_systems as systems
from tidegate.cli.errors import CommandError
from tidegate.cli.load import INTERRUPTED, check_writable
from tidegate.cli.policy_files import PolicyInput, read_policy
from tidegate.cli.simulate_workload import BUILT_IN, Load, Timing, pools_of, prepare
from tidegate.load.tables import output_console
from tidegate.scheduling.contracts import ContractError, Policy, SchedulingMode, Task, dumps
from tidegate.scheduling.contracts.limits import SloMetric, SloObjective
from tidegate.scheduling.contracts.simulation_report import FidelityCheck
from tidegate.simulator.report import Run, Setting, build_report
from tidegate.simulator.report.fidelity import read_check
from tidegate.simulator.report.tables import print_report
from tidegate.simulator.simulation.result import RequestRecord
from tidegate.simulator.simulation.run import Progress

DEFAULT_CALIBRATION = "h100_70b_tp8"
DEFAULT_POLICY = "tidegate"
_LINE_SECONDS = 10.0
_MOST_SECONDS = 1_000_000
"""Of virtual time, as in a scenario."""
_MOST_GPUS = 10_000
_MOST_PRICE = 1_000_000
_MOST_SEED = 2**53 - 1
"""The largest that the report's readers take."""
_METRICS = {
    "ttft": SloMetric.TIME_TO_FIRST_TOKEN,
    "e2e": SloMetric.END_TO_END,
    "itl": SloMetric.INTER_TOKEN_LATENCY,
}
_SLO = re.compile(
    r"(?P<tier>[^=]+)=(?P<metric>ttft|e2e|itl):(?P<value>[0-9.]+)(?P<unit>ms|s)"
    r"(?::(?P<percent>[0-9.]+))?"
)
_SLO_FORM = "expected TIER=ttft:800ms:99.5 (or e2e, itl; ms or s; the percent may be left out)"


def simulate(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Manifests (TenantTier, Tenant, ServingPool, Namespace), folders of them, or a "
            "policy.json.",
        ),
    ],
    workload: Annotated[
        str,
        typer.Option(
            help=f"A scenario file as for `tidegate load`, or one of {', '.join(BUILT_IN)}."
        ),
    ],
    policy: Annotated[
        str | None,
        typer.Option(
            help=f"What schedules: {', '.join(systems.POLICIES)}. Unset: tidegate, or fcfs where "
            "the pool's schedulingMode says so."
        ),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(metavar="POLICY", help="Simulate this one too. Repeatable; commas do too."),
    ] = None,
    pool: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which ServingPool, where there are several.")
    ] = None,
    calibration: Annotated[
        str, typer.Option(help="The engine's constants: a name or a JSON file.")
    ] = DEFAULT_CALIBRATION,
    gpus: Annotated[
        int | None,
        typer.Option(
            min=1, max=_MOST_GPUS, help="GPUs of the engine; unset: as the calibration says."
        ),
    ] = None,
    gpu_hour: Annotated[
        float | None,
        typer.Option(
            metavar="PRICE", min=0, max=_MOST_PRICE, help="Price of one GPU for one hour."
        ),
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TIER=METRIC:TARGET[:PERCENT]",
            help="A latency objective, such as t0=ttft:800ms:99.5 (ttft, e2e or itl). Repeatable.",
        ),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=_MOST_SECONDS,
            help="Seconds of virtual time measured; unset: the workload's own.",
        ),
    ] = None,
    warmup: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=_MOST_SECONDS,
            help="Seconds of it left out at the start; unset: the workload's own.",
        ),
    ] = None,
    drain: Annotated[
        float,
        typer.Option(
            min=0, max=_MOST_SECONDS, help="Seconds simulated after it, so that the last may end."
        ),
    ] = 60.0,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, max=_MOST_SEED, help="Of everything random; unset: the workload's own."
        ),
    ] = None,
    fidelity: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What `scripts/bench fidelity --json FILE` wrote, to stand first."
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the report here as JSON.")
    ] = None,
    html_file: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Write a page with plots here, self-contained."
        ),
    ] = None,
) -> None:
    """Simulate tenants under a policy in virtual time: latency, fairness, use and price by tier.

    The scheduler is the one that runs in production; the engine is a model. What of it was checked
    against a real engine stands first in every report.
    """
    check_writable(json_file, "--json")
    check_writable(html_file, "--html")
    if json_file is not None and html_file is not None and _same(json_file, html_file):
        raise CommandError(f"--json and --html are both {html_file}", exit_code=2)
    to_html = _renderer() if html_file is not None else None
    check = _fidelity(fidelity) if fidelity is not None else None
    engine = systems.hardware(calibration, gpus)
    asked = _names([*([policy] if policy else []), *(compare or [])])
    systems.check_policies(asked, engine)
    given = read_policy(files, pool)
    if given.policy.model.task is Task.EMBED:
        raise CommandError(
            f"{given.policy.pool} embeds; only pools that generate text are simulated",
            exit_code=2,
        )
    systems.check_limits(given.policy)
    names = asked if policy else _names([_own_policy(given.policy), *asked])
    given = replace(given, policy=_promised(given.policy, slo or []))
    load = prepare(given, workload, Timing(duration, warmup, drain, seed))
    systems.check_split(names, load)
    notes = (*given.notes, *load.notes, *_notes(given, engine, names))
    try:
        runs = _simulated(names, load, engine)
    except KeyboardInterrupt:
        raise CommandError("interrupted", exit_code=INTERRUPTED) from None
    notes = (*notes, *_served_only_here(given.policy, runs[0].result.records))
    report = build_report(runs, Setting(engine.name, load.measured_until, gpu_hour, check, notes))
    # First, for what is printed may go to a pager or a pipe that somebody closes.
    if json_file is not None:
        _write(json_file, dumps(report) + "\n")
    if html_file is not None and to_html is not None:
        results = [run.result for run in runs]
        _write(html_file, to_html(report, results, pools_of(load.policy)))
    print_report(report, output_console())


def _same(one: Path, other: Path) -> bool:
    """One file; a terminal or a pipe takes both."""
    return one.resolve() == other.resolve() and (one.is_file() or not one.exists())


def _fidelity(file: Path) -> FidelityCheck:
    try:
        return read_check(file)
    except OSError as error:
        raise CommandError(f"--fidelity: {file}: {error.strerror}", exit_code=2) from None
    except ContractError as error:
        raise CommandError(f"--fidelity: {file}: {error}", exit_code=2) from None


def _names(given: Sequence[str]) -> list[str]:
    """Each once, in the order given."""
    names = [name.strip() for one in given for name in one.split(",")]
    return list(dict.fromkeys(filter(None, names)))


def _own_policy(policy: Policy) -> str:
    """What the pool's own mode comes to: Shadow serves first come first served, too."""
    return DEFAULT_POLICY if policy.scheduling_mode is SchedulingMode.TIDEGATE else "fcfs"


def _promised(policy: Policy, given: Sequence[str]) -> Policy:
    """The policy with the objectives of the command line, in the place of those it has."""
    objectives = {tier.name: {one.metric: one for one in tier.slo_objectives}
                  for tier in policy.tiers}  # fmt: skip
    for text in given:
        tier, objective = _objective(text)
        if tier not in objectives:
            raise CommandError(
                f"--slo: there is no tier {tier!r}; there are {', '.join(objectives)}", exit_code=2
            )
        objectives[tier][objective.metric] = objective
    tiers = tuple(
        replace(tier, slo_objectives=tuple(objectives[tier.name].values())) for tier in policy.tiers
    )
    return replace(policy, tiers=tiers)


def _objective(text: str) -> tuple[str, SloObjective]:
    match = _SLO.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        seconds = float(match["value"]) / (1000 if match["unit"] == "ms" else 1)
        percent = float(match["percent"]) if match["percent"] else 99.0
        if not 0 < seconds <= 86_400 or not 0 < percent <= 100:
            raise ValueError
    except ValueError:
        raise CommandError(f"--slo {text}: {_SLO_FORM}", exit_code=2) from None
    return match["tier"], SloObjective(_METRICS[match["metric"]], seconds, percent)


def _notes(given: PolicyInput, engine: systems.Hardware, names: Sequence[str]) -> Iterator[str]:
    """What a reader must know of how the policy was simulated."""
    if DEFAULT_POLICY in names:
        yield (
            "tidegate: with the plug-in in the engine; sidecar: Tidegate before a stock vLLM, "
            "as a pool without the plug-in runs"
        )
    if given.policy.scheduling_mode is not SchedulingMode.TIDEGATE:
        yield (
            f"The pool's mode is {given.policy.scheduling_mode}, simulated as fcfs; under "
            "--policy tidegate or sidecar it is as if switched on"
        )
    if given.gpus is not None and given.gpus != engine.gpus:
        yield (
            f"The pool's engine has {given.gpus} GPUs, {engine.name} has {engine.gpus}: choose the "
            "--calibration that is nearest to your hardware"
        )
    if given.replicas > 1:
        yield f"One of {given.replicas} replicas is simulated, and gets all of the workload"


def _served_only_here(policy: Policy, records: Iterable[RequestRecord]) -> Iterator[str]:
    """Limits that no scheduler looks at, but an engine or a sidecar does before it."""
    context = policy.model.max_model_len_tokens or inf
    output = {tier.name: tier.output.max_tokens or inf for tier in policy.tiers}
    long = answers = 0
    for one in records:
        long += one.prompt_tokens + max(1, one.output_tokens) > context
        answers += one.output_tokens > output[one.tier]
    if long:
        yield (
            f"{long:,} requests are longer than the model's context of {context:,} tokens: a real "
            "engine refuses them with 400"
        )
    if answers:
        yield (
            f"{answers:,} answers are longer than their tier's output.max: a sidecar refuses such "
            "requests with 400"
        )


def _simulated(names: Sequence[str], load: Load, engine: systems.Hardware) -> list[Run]:
    with _watching(Console(stderr=True)) as watch:
        return [systems.run(name, load, engine, watch) for name in names]


@contextmanager
def _watching(console: Console) -> Iterator[systems.Watch]:
    """A bar for each simulation on a terminal, else a line now and then."""
    if not console.is_terminal:
        yield lambda what, seconds: _lines(console, what, seconds)
        return
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TextColumn("{task.percentage:>3.0f}%"),
        bars.TimeElapsedColumn(),
    )
    with bars.Progress(*columns, console=console, transient=True) as progress:

        def watch(what: str, seconds: float) -> Progress:
            task = progress.add_task(what, total=seconds)
            return lambda now: progress.update(task, completed=now)

        yield watch


def _lines(console: Console, what: str, seconds: float) -> Progress:
    last = time.monotonic()

    def reached(now: float) -> None:
        nonlocal last
        if time.monotonic() - last >= _LINE_SECONDS:
            last = time.monotonic()
            console.print(
                f"{what}: {now:,.0f} s of {seconds:,.0f} s", highlight=False, soft_wrap=True
            )

    return reached


def _renderer() -> Callable[..., str]:
    """Imported only for a page, and before the simulation: matplotlib takes a second or is not."""
    try:
        from tidegate.simulator.report.html import page
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tidegate"):
            raise
        raise CommandError(
            f"--html needs {error.name}: install it with pip install 'tidegate[simulator]'"
        ) from None
    return page


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror}") from None
