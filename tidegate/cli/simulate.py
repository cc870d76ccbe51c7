"""`tidegate simulate`: what a policy and a mix of tenants would do, before it is rolled out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from tidegate.cli import simulate_options as options
from tidegate.cli import simulate_systems as systems
from tidegate.cli.errors import INTERRUPTED, CommandError
from tidegate.cli.policy_files import PolicyInput, read_policy
from tidegate.cli.simulate_files import ReportFiles
from tidegate.cli.simulate_notes import how_simulated, served_only_here
from tidegate.cli.simulate_progress import watching
from tidegate.cli.simulate_slo import promised
from tidegate.cli.simulate_workload import Timing, pools_of, prepare
from tidegate.load.tables import output_console
from tidegate.scheduling.contracts import ContractError, Policy, SchedulingMode, Task
from tidegate.scheduling.contracts.simulation_report import FidelityCheck
from tidegate.simulator.report import Setting, build_report
from tidegate.simulator.report.fidelity import read_check
from tidegate.simulator.report.tables import print_report

DEFAULT_CALIBRATION = "h100_70b_tp8"
TIDEGATE = "tidegate"
"""With the plug-in: what runs unless asked otherwise."""


def simulate(
    files: options.Files,
    workload: options.WorkloadName,
    policy: options.PolicyName = None,
    compare: options.Compared = None,
    pool: options.PoolName = None,
    calibration: options.CalibrationName = DEFAULT_CALIBRATION,
    gpus: options.Gpus = None,
    gpu_hour: options.GpuHour = None,
    slo: options.Slos = None,
    duration: options.Duration = None,
    warmup: options.Warmup = None,
    drain: options.Drain = 60.0,
    seed: options.Seed = None,
    fidelity: options.FidelityFile = None,
    json_file: options.JsonFile = None,
    html_file: options.HtmlFile = None,
) -> None:
    """Simulate tenants under a policy in virtual time: latency, fairness, use and price by tier.

    The scheduler is the one that runs in production; the engine is a model. What of it was checked
    against a real engine stands first in every report.
    """
    output = ReportFiles(json_file, html_file)
    check = _fidelity(fidelity) if fidelity is not None else None
    engine = systems.hardware(calibration, gpus)
    given, names = _asked(files, pool, policy, compare or [], engine)
    given = replace(given, policy=promised(given.policy, slo or []))
    load = prepare(given, workload, Timing(duration, warmup, drain, seed))
    systems.check_split(names, load)
    try:
        with watching(Console(stderr=True)) as watch:
            runs = [systems.run(name, load, engine, watch) for name in names]
    except KeyboardInterrupt:
        raise CommandError("interrupted", exit_code=INTERRUPTED) from None
    notes = (
        *given.notes,
        *load.notes,
        *how_simulated(given, engine, TIDEGATE in names),
        *served_only_here(given.policy, runs[0].result.records),
    )
    report = build_report(runs, Setting(engine.name, load.measured_until, gpu_hour, check, notes))
    # First, for what is printed may go to a pager or a pipe that somebody closes.
    output.write(report, [run.result for run in runs], pools_of(load.policy))
    print_report(report, output_console())


def _asked(
    files: Sequence[Path],
    pool: str | None,
    policy: str | None,
    compare: Sequence[str],
    engine: systems.Hardware,
) -> tuple[PolicyInput, list[str]]:
    """The pool's own policy, and the names of what schedules it, the first being judged."""
    asked = _names([*([policy] if policy else []), *compare])
    systems.check_policies(asked, engine)
    given = read_policy(files, pool)
    if given.policy.model.task is Task.EMBED:
        raise CommandError(
            f"{given.policy.pool} embeds; only pools that generate text are simulated",
            exit_code=2,
        )
    systems.check_limits(given.policy)
    return given, asked if policy else _names([_own_policy(given.policy), *asked])


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
    return TIDEGATE if policy.scheduling_mode is SchedulingMode.TIDEGATE else "fcfs"
