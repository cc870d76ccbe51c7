"""Draws the dashboards of manifests/monitoring from a real Prometheus, under a mixed load.

    .venv/bin/python benchmarks/panels.py [--cluster NAME] [--out FOLDER] [--minutes N]

Grafana is not needed, and no proof of it: what is drawn is each panel's own queries over the run,
with its legend, unit, limits and place, so that somebody can look whether they show anything.
Beside them `top.txt` and `top.svg`, what `tidegate top` says at the height of the load, and each
row of a dashboard by itself (`pool-8.png`). The load: a paid tenant
that asks now and then, a tenant of the same tier that comes with far more than its share for a
third of the time, one at its rate limit, and a batch that always waits, on an engine with room for
four.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from live_pool import History, LivePool, cluster_of, live_pool, local_cluster
from matplotlib.axes import Axes
from matplotlib.dates import DateFormatter
from matplotlib.ticker import FuncFormatter, NullFormatter
from matplotlib.transforms import Bbox
from rich.console import Console
from rich.text import Text

from testbed.e2e_cluster import Scene
from testbed.prometheus import Prometheus
from tidegate.load import LoadRun
from tidegate.scheduling.contracts import (
    SCENARIO_VERSION,
    Arrival,
    ArrivalProcess,
    Endpoint,
    LengthDistribution,
    LengthShape,
    Scenario,
    TenantLoad,
)
from tidegate.workload import Workload

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[1]

NAMESPACE = "panels"
STEP_SECONDS = 15
TERMINAL_COLUMNS = 170
COLUMNS, UNIT_WIDTH, UNIT_HEIGHT = 24, 0.8, 0.45
"""Of Grafana's grid, in inches."""


def scene_of(cluster: Any) -> Scene:
    """Two promised tiers, one of batch; the engine has four seats of a quarter of a second."""

    def promise(target: str) -> Json:
        objective = {"metric": "TimeToFirstToken", "target": target, "ratio": "99"}
        return {"objectives": [objective]}

    limit = {"name": "minute", "requests": 20, "per": "Minute"}
    batch_queue = {"maxRequests": 1000, "maxWait": "1h"}
    return Scene(
        cluster,
        NAMESPACE,
        tiers={
            "paid": {"priority": 100, "slo": promise("2s")},
            "free": {"priority": 10, "slo": promise("5s"), "rateLimits": [limit]},
            "batch": {"priority": 0, "queue": batch_queue},
        },
        tenants={
            "quiet": {"tier": "paid"},
            "noisy": {"tier": "paid"},
            "limited": {"tier": "free"},
            "batch": {"tier": "batch"},
        },
        engine_args=["--max-num-seqs=4", "--num-gpu-blocks-override=200"],
        engine_env={
            "TIDEGATE_FAKE_CALIBRATION": "h100_70b_tp8",
            "TIDEGATE_FAKE_TIME_SCALE": "8",
            "TIDEGATE_FAKE_IGNORE_EOS": "1",
        },
        pool_spec={
            "model": {
                "name": Scene.model,
                "source": {"huggingFace": {"repo": "example/test-model"}},
                "maxModelLen": 2048,
            },
            "kvPools": [
                {
                    "name": "interactive",
                    "tiers": [f"{NAMESPACE}-paid", f"{NAMESPACE}-free"],
                    "percent": 60,
                },
                {"name": "batch", "tiers": [f"{NAMESPACE}-batch"], "percent": 30},
            ],
        },
    )


def scenario_of(seconds: float) -> Scenario:
    """One tenant more than its share in the middle third."""

    def tenant(name: str, tier: str, arrival: Arrival, output: int, **when: Any) -> TenantLoad:
        return TenantLoad(
            name=name,
            tier=tier,
            arrival=arrival,
            endpoint=Endpoint.COMPLETIONS,
            prompt_as_token_ids=True,
            prompt_tokens=LengthDistribution(LengthShape.UNIFORM, low=50, high=200),
            output_tokens=LengthDistribution(LengthShape.CONSTANT, value=output),
            **when,
        )

    def poisson(rate: float) -> Arrival:
        return Arrival(ArrivalProcess.POISSON, rate_per_second=rate)

    noisy = {"start_seconds": seconds / 3, "requests": max(1, round(4.0 * seconds / 3))}
    return Scenario(
        version=SCENARIO_VERSION,
        name="panels",
        model=Scene.model,
        seed=8,
        duration_seconds=seconds,
        drain_seconds=120.0,
        tenants=(
            tenant("quiet", "paid", poisson(0.4), 16),
            tenant("noisy", "paid", poisson(4.0), 16, **noisy),
            tenant("limited", "free", poisson(0.8), 8),
            tenant("batch", "batch", Arrival(ArrivalProcess.CLOSED, concurrency=12), 32),
        ),
    )


async def run(arguments: argparse.Namespace, local: Any) -> None:
    """The load, `tidegate top` while it is at its height, then the pictures."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    scene = scene_of(cluster_of(local))
    past = History(3.0, 1.0, 0.002)
    histories = {"paid": past, "free": past}
    async with live_pool(local, scene, histories) as live:
        scenario = scenario_of(60.0 * arguments.minutes)
        keys = {name: scene.key(name) for name in scene.tenants}
        load = LoadRun(Workload(scenario), await asyncio.to_thread(lambda: scene.endpoint), keys)
        begin = time.time()
        running = asyncio.create_task(load.run())
        try:
            await asyncio.sleep(scenario.duration_seconds * 0.62)
            await asyncio.to_thread(_top, live, arguments.out)
            await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        for path in sorted((ROOT / "manifests" / "monitoring").glob("*.json")):
            picture = arguments.out / f"{path.stem}.png"
            await draw(json.loads(path.read_text()), live.prometheus, begin, picture)
            print(picture)


def _top(live: LivePool, out: Path) -> None:
    """As a terminal shows it."""
    program = Path(sys.executable).parent / "tidegate"
    command = [program, "top", "--once", f"--kubeconfig={live.kubeconfig}", "-n", NAMESPACE]
    environment = {"COLUMNS": str(TERMINAL_COLUMNS), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    (out / "top.txt").write_text(done.stdout)
    console = Console(record=True, width=TERMINAL_COLUMNS, file=io.StringIO())
    console.print(Text(done.stdout))
    console.save_svg(str(out / "top.svg"), title="tidegate top --once")


async def draw(dashboard: Json, prometheus: Prometheus, begin: float, picture: Path) -> None:
    """Every panel at its place, over the time since ``begin``."""
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    rows = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in dashboard["panels"])
    figure = plt.figure(figsize=(COLUMNS * UNIT_WIDTH, rows * UNIT_HEIGHT))
    for panel in panels:
        place = panel["gridPos"]
        left = (place["x"] + 0.9) / COLUMNS
        bottom = 1 - (place["y"] + place["h"] - 1.2) / rows
        axes = figure.add_axes(
            (left, bottom, (place["w"] - 1.2) / COLUMNS, (place["h"] - 2.4) / rows)
        )
        await _panel(axes, panel, prometheus, begin)
    figure.savefig(picture, dpi=60)
    for row, end in _rows(dashboard["panels"], rows):
        top, bottom = ((rows - y) * UNIT_HEIGHT for y in (row["gridPos"]["y"] + 0.5, end + 0.5))
        part = Bbox([[0, bottom], [COLUMNS * UNIT_WIDTH, top]])
        figure.savefig(picture.with_stem(f"{picture.stem}-{row['id']}"), dpi=50, bbox_inches=part)
    plt.close(figure)


def _rows(panels: Sequence[Json], end: int) -> Iterator[tuple[Json, int]]:
    """Each row of a dashboard, with where the next begins."""
    rows = [panel for panel in panels if panel["type"] == "row"]
    ends = [row["gridPos"]["y"] for row in rows[1:]]
    yield from zip(rows, [*ends, end][: len(rows)], strict=True)


async def _panel(axes: Axes, panel: Json, prometheus: Prometheus, begin: float) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    unit = UNITS[defaults["unit"]]
    axes.set_title(panel["title"], fontsize=10, loc="left")
    axes.tick_params(labelsize=7)
    found: list[tuple[str, list[tuple[float, float]]]] = []
    for target in panel["targets"]:
        query = target["expr"].replace("$namespace", NAMESPACE).replace("$pool", "pool")
        answer = await prometheus.get(
            "/api/v1/query_range",
            query=query,
            start=f"{begin:.0f}",
            end=f"{time.time():.0f}",
            step=str(STEP_SECONDS),
        )
        found += [
            (_legend(target["legendFormat"], series["metric"]), _points(series["values"]))
            for series in answer["data"]["result"]
        ]
    if not found:
        axes.text(0.5, 0.5, "No data", ha="center", va="center", transform=axes.transAxes)
    if panel["type"] == "bargauge":
        _bars(axes, found, defaults, unit)
        return
    for legend, points in found:
        times = [at / 86_400 for at, _ in points]
        axes.plot(times, [value for _, value in points], linewidth=1.2, label=legend)
    if defaults.get("custom", {}).get("scaleDistribution", {}).get("type") == "log":
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(defaults.get("min"), defaults.get("max"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: unit(value)))
    axes.xaxis.set_major_formatter(DateFormatter("%H:%M"))
    if found:
        axes.legend(fontsize=6, loc="upper left")


def _bars(axes: Axes, found: Sequence[Any], defaults: Json, unit: Callable[[float], str]) -> None:
    ordered = sorted(found, key=lambda series: -series[1][-1][1])
    low, high = defaults.get("min", 0.0), defaults.get("max", 1.0)
    values = [points[-1][1] for _, points in ordered]
    axes.barh(range(len(values)), [min(max(v, low), high) for v in values])
    axes.set_xlim(low, high)
    axes.set_yticks([])
    for place, (name, _) in enumerate(ordered):
        axes.text(low, place, f" {name}: {unit(values[place])}", va="center", fontsize=8)


def _legend(template: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), template)


def _points(values: Sequence[Any]) -> list[tuple[float, float]]:
    return [(at, float(value)) for at, value in values if math.isfinite(float(value))]


def _seconds(value: float) -> str:
    return f"{value * 1000:.3g} ms" if abs(value) < 1 else f"{value:.3g} s"


def _bytes(value: float) -> str:
    return f"{value / 1024:.3g} KiB" if abs(value) >= 1024 else f"{value:.4g} B"


UNITS: dict[str, Callable[[float], str]] = {
    "short": lambda value: f"{value:.4g}",
    "none": lambda value: f"{value:.10g}",
    "percentunit": lambda value: (
        f"{100 * value:,.0f}%" if abs(value) >= 1 else f"{100 * value:.3g}%"
    ),
    "s": _seconds,
    "bytes": _bytes,
    "reqps": lambda value: f"{value:.3g} req/s",
}
"""As Grafana writes them."""


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cluster", help="this running local cluster, instead of one of its own")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "panels")
    parser.add_argument("--minutes", type=float, default=9.0, help="of load [9]")
    arguments = parser.parse_args()
    with local_cluster(arguments.cluster) as local:
        asyncio.run(run(arguments, local))


if __name__ == "__main__":
    main()
