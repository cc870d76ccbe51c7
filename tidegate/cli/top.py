"""`tidegate top`: who waits, who runs and who is refused, while it happens."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from tidegate.cli.cluster_objects import ClusterObjects, Kubeconfig
from tidegate.cli.errors import CommandError
from tidegate.cli.existing_cluster import Name
from tidegate.cli.top_tables import pool_remarks, pool_table, tenant_table, tier_table
from tidegate.load.tables import output_console
from tidegate.local_cluster.paths import DEFAULT_CLUSTER

LAG = (
    "as the operator wrote it up to 15 s ago: what waits, runs and is refused, and share and TTFT "
    "(time to first token) of the last minute, of a tenant only among the ten that do most in a "
    "pool; queue and last refusal of others up to 5 min ago; `tidegate explain NAMESPACE/TENANT` "
    "asks now"
)
_RESOURCES = ("servingpools.tidegate.io", "tenants.tidegate.io")


def top(
    name: Name = DEFAULT_CLUSTER,
    kubeconfig: Kubeconfig = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Only pools and tenants in it.")
    ] = None,
    tier: Annotated[str | None, typer.Option(help="Only this TenantTier.")] = None,
    every: Annotated[int, typer.Option(min=1, max=3600, help="Seconds between two looks.")] = 5,
    once: Annotated[bool, typer.Option("--once", help="Print it once, for scripts.")] = False,
) -> None:
    """Show pools, tiers and tenants as their own status has them, until Ctrl-C.

    The operator writes the figures of a pool, and in it those of its tiers and of the tenants that
    do most, every 15 seconds: they are what is shown, and look back on a minute. Those of a
    TenantTier of its own are written every minute, those of a Tenant every 5 minutes: of these only
    the queue and the last refusal of a tenant with little to do are shown. `tidegate explain
    NAMESPACE/TENANT` asks now.
    """
    cluster = ClusterObjects(name, kubeconfig)
    console = output_console()
    if once or not console.is_terminal:
        console.print(_screen(cluster.read(*_RESOURCES), namespace, tier, console.width))
        return
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_look(cluster, namespace, tier, console.width), refresh=True)
                time.sleep(every)
    except KeyboardInterrupt:
        return


def _look(cluster: ClusterObjects, namespace: str | None, tier: str | None, width: int) -> Group:
    """The screen, or why there is none just now: the next look may find the cluster again."""
    try:
        return _screen(cluster.read(*_RESOURCES), namespace, tier, width)
    except CommandError as error:
        return Group(Text(f"{_clock()}: {error}", style="red"))


def _screen(
    objects: list[dict[str, Any]], namespace: str | None, tier: str | None, width: int
) -> Group:
    chosen = [obj for obj in objects if namespace in (None, obj["metadata"]["namespace"])]
    pools = [obj for obj in chosen if obj["kind"] == "ServingPool"]
    tenants = [obj for obj in chosen if obj["kind"] == "Tenant"]
    if not pools and not tenants:
        where = "" if namespace is None else f" in namespace {namespace}"
        return Group(Text(f"There is no ServingPool and no Tenant{where}."))
    now = datetime.now(UTC)
    return Group(
        Text(f"{_clock()}, {_counted(pools, 'pool')}, {_counted(tenants, 'tenant')}", style="bold"),
        Text(LAG, style="dim"),
        Text(),
        pool_table(pools, width),
        *(Text(remark, overflow="fold") for remark in pool_remarks(pools)),
        Text(),
        tier_table(pools, width, tier),
        Text(),
        tenant_table(tenants, pools, now, width, tier),
    )


def _counted(objects: list[dict[str, Any]], what: str) -> str:
    return f"{len(objects)} {what}" if len(objects) == 1 else f"{len(objects)} {what}s"


def _clock() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")
