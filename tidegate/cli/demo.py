"""`tidegate demo`: a burst and a quiet tenant, through one shared queue and through Tidegate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.cluster_objects import kubectl_of
from tidegate.cli.errors import INTERRUPTED, CommandError
from tidegate.cli.existing_cluster import Name, existing_cluster, told
from tidegate.cli.load import check_writable, measure
from tidegate.cli.pool_mode import PoolMode
from tidegate.load import LoadError
from tidegate.load.demo import A, B, DemoInterruptedError, DemoPhase, DemoSizes, run_demo
from tidegate.load.demo_output import demo_table, write_chart
from tidegate.load.event_loop import run_fast
from tidegate.load.http_client import checked_endpoint
from tidegate.load.tables import notes, output_console
from tidegate.local_cluster.paths import DEFAULT_CLUSTER
from tidegate.local_cluster.status import cluster_status


@dataclass(frozen=True, slots=True)
class _Target:
    """Where the pool is served and the cluster that it is configured in."""

    endpoint: str
    kubeconfig: Path
    kubectl: str


def demo(
    name: Name = DEFAULT_CLUSTER,
    endpoint: Annotated[
        str | None, typer.Option(help="Base URL of the pool, instead of the local cluster's.")
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="The pool's cluster; needed with --endpoint."
        ),
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
    target = _target(name, endpoint, kubeconfig, namespace, pool)
    switch = PoolMode(target.kubeconfig, namespace, pool, target.kubectl)
    sizes = DemoSizes()

    async def both() -> tuple[DemoPhase, ...]:
        model = await switch.model()
        keys = {A: key_a, B: key_b}
        return await run_demo(target.endpoint, model, keys, switch, measure, sizes=sizes)

    try:
        phases = run_fast(both())
    except LoadError as error:
        raise CommandError(str(error)) from None
    except (DemoInterruptedError, KeyboardInterrupt):
        raise CommandError(
            "interrupted; the pool has its own scheduling mode again", INTERRUPTED
        ) from None
    console = output_console()
    console.print(demo_table(phases, sizes))
    for phase in phases:
        for line in notes(phase.report)[1:]:
            console.print(f"{phase.report.scenario}: {line}")
    with told():
        write_chart(phases, sizes, svg)
    console.print(f"The picture: {svg}")
    if any(phase.report.total.ok < phase.report.total.sent for phase in phases):
        raise CommandError("not every request was answered")


def _target(
    name: str, endpoint: str | None, kubeconfig: Path | None, namespace: str, pool: str
) -> _Target:
    """What was given, else the local cluster's."""
    if (endpoint is None) != (kubeconfig is None):
        raise CommandError("--endpoint and --kubeconfig go together", exit_code=2)
    if endpoint is None or kubeconfig is None:
        return _local_target(name, namespace, pool)
    try:
        program = kubectl_of(name, kubeconfig).program
        return _Target(checked_endpoint(endpoint), kubeconfig, program)
    except LoadError as error:
        raise CommandError(str(error), exit_code=2) from None


def _local_target(name: str, namespace: str, pool: str) -> _Target:
    with told():
        found = cluster_status(existing_cluster(name))
    wanted = (namespace, pool, "http")
    for service in found["services"]:
        if (service["namespace"], service["name"], service["portName"]) == wanted:
            return _Target(
                endpoint=f"http://{service['address']}",
                kubeconfig=Path(found["kubeconfig"]),
                kubectl=kubectl_of(name, None).program,
            )
    raise CommandError(
        f"cluster {name!r} ({found['state']}) has no Service of pool {namespace}/{pool}: see "
        "`tidegate status`"
    )
