"""`tidegate load`: a scenario's requests over HTTP, and what the tenants experienced."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tidegate.cli.errors import INTERRUPTED, CommandError
from tidegate.load import LoadError, LoadRun, build_report
from tidegate.load.event_loop import run_fast
from tidegate.load.http_client import checked_endpoint
from tidegate.load.progress import show_progress
from tidegate.load.tables import output_console, print_report
from tidegate.scheduling.contracts import LoadReport, Scenario, dumps
from tidegate.workload import ScenarioError, TraceError, read_scenario


def load(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML); see examples/load.")],
    endpoint: Annotated[
        str,
        typer.Option(
            envvar="TIDEGATE_ENDPOINT", help="Base URL of the pool, sidecar or engine to load."
        ),
    ],
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the report here as JSON.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=KEY", help="A tenant's API key, instead of the scenario's. Repeatable."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model to ask for, instead of the scenario's.")
    ] = None,
) -> None:
    """Send a scenario's requests and report per tenant and tier.

    Trace paths are relative to the scenario's folder or to $TIDEGATE_TRACES. ^C ends the run and
    prints what was measured until then.
    """
    try:
        workload = read_scenario(scenario)
        workload.check_sources()
        checked_endpoint(endpoint)
        keys = tenant_keys(workload.scenario, key or [])
        check_writable(json_file, "--json")
    except (ScenarioError, TraceError, LoadError) as error:
        raise CommandError(str(error), exit_code=2) from None
    try:
        report = run_fast(measure(LoadRun(workload, endpoint, keys, model=model)))
    except LoadError as error:
        raise CommandError(str(error)) from None
    print_report(report, output_console())
    if json_file is not None:
        _write(json_file, report)
    if not report.complete:
        raise typer.Exit(INTERRUPTED)
    if report.total.sent > 0 and report.total.ok == 0:
        raise CommandError("no request was answered")


async def measure(run: LoadRun) -> LoadReport:
    """Run to the end or the first ^C, with progress on stderr; a second ^C kills as usual."""
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        run.stop()
        loop.remove_signal_handler(signal.SIGINT)

    loop.add_signal_handler(signal.SIGINT, interrupt)
    progress = asyncio.create_task(show_progress(run, Console(stderr=True), run.scenario.name))
    try:
        await run.run()
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        progress.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await progress
    return build_report(
        run.scenario,
        run.samples,
        started_at=run.started_at,
        complete=run.complete,
        loop_lag_p99_seconds=run.loop_lag.p99_seconds,
    )


def tenant_keys(scenario: Scenario, given: Sequence[str]) -> dict[str, str]:
    """API key by tenant: from the command line, else the scenario, else its environment variable.

    Errors name the tenant, never the key.
    """
    names = {tenant.name for tenant in scenario.tenants}
    keys: dict[str, str] = {}
    for item in given:
        name, separator, key = item.partition("=")
        if not separator or not key:
            raise CommandError("--key: expected NAME=KEY", exit_code=2)
        if name not in names:
            raise CommandError(f"--key: the scenario has no tenant {name!r}", exit_code=2)
        keys[name] = key
    for tenant in scenario.tenants:
        if tenant.name in keys:
            continue
        if tenant.key is not None:
            keys[tenant.name] = tenant.key
        elif tenant.key_env is not None:
            key = os.environ.get(tenant.key_env, "")
            if not key:
                raise CommandError(
                    f"tenant {tenant.name!r}: the environment variable {tenant.key_env} holds no "
                    f"key; set it or give --key {tenant.name}=KEY",
                    exit_code=2,
                )
            keys[tenant.name] = key
    for name, key in keys.items():
        if not key.isascii() or not key.isprintable() or " " in key:
            raise CommandError(f"tenant {name!r}: its key is not printable ASCII", exit_code=2)
    return keys


def check_writable(file: Path | None, option: str) -> None:
    """Before the run: its end is too late to learn that its result can't be kept."""
    if file is None:
        return
    folder = file.absolute().parent
    target = file if os.path.exists(file) else folder
    if os.path.isdir(file) or not os.path.isdir(folder) or not os.access(target, os.W_OK):
        raise CommandError(f"{option}: cannot write {file}", exit_code=2)


def _write(json_file: Path, report: LoadReport) -> None:
    try:
        json_file.write_text(dumps(report) + "\n", encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {json_file}: {error.strerror}") from None
