"""`tidegate demo`: a burst and a quiet tenant, through one shared queue and through Tidegate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.errors import CommandError
from tidegate.cli.load import INTERRUPTED, check_writable, measure
from tidegate.cli.pool_mode import PoolMode, find_kubectl
from tidegate.load import LoadError
from tidegate.load.demo import A, B, DemoInterruptedError, DemoPhase, DemoSizes, run_demo
from tidegate.load.demo_output import demo_table, write_chart
from tidegate.load.event_loop import run_fast
from tidegate.load.http_client import checked_endpoint
from tidegate.load.tables import notes, output_console
from tidegate.local_cluster.paths import cache_directory


def demo(
    endpoint: Annotated[str, typer.Option(help="Base URL of the pool.")],
    kubeconfig: Annotated[
        Path | None, typer.Option(envvar="KUBECONFIG", help="Cluster of the pool.")
    ] = None,
    namespace: Annotated[str, typer.Option(help="Namespace of the pool.")] = "quickstart",
    pool: Annotated[str, typer.Option(help="The ServingPool.")] = "chat",
    key_a: Annotated[str, typer.Option(help="A's API key.")] = "demo-a",
    key_b: Annotated[str, typer.Option(help="B's API key, of the same tier.")] = "demo-b",
    svg: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("tidegate-demo.svg"),
) -> None:
    """Let A send 2,000 requests and B 5, first come first served and then through Tidegate.

    Takes about a minute on the quickstart's pool, whose scheduling mode is switched for it and then
    put back.
    """
    check_writable(svg, "--svg")
    sizes = DemoSizes()
    try:
        checked_endpoint(endpoint)
    except LoadError as error:
        raise CommandError(str(error), exit_code=2) from None
    switch = PoolMode(kubeconfig, namespace, pool, find_kubectl(cache_directory() / "bin"))

    async def both() -> tuple[DemoPhase, ...]:
        model = await switch.model()
        return await run_demo(endpoint, model, {A: key_a, B: key_b}, switch, measure, sizes=sizes)

    try:
        phases = run_fast(both())
    except LoadError as error:
        raise CommandError(str(error)) from None
    except DemoInterruptedError:
        typer.echo("interrupted; the pool has its own scheduling mode again", err=True)
        raise typer.Exit(INTERRUPTED) from None
    console = output_console()
    console.print(demo_table(phases, sizes))
    for phase in phases:
        for line in notes(phase.report)[1:]:
            console.print(f"{phase.report.scenario}: {line}")
    write_chart(phases, sizes, svg)
    console.print(f"The picture: {svg}")
    if any(phase.report.total.ok < phase.report.total.sent for phase in phases):
        raise CommandError("not every request was answered")
