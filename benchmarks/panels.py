"""Draws the dashboards of manifests/monitoring from a real Prometheus, under a mixed load.

    .venv/bin/python benchmarks/panels.py [--cluster NAME] [--out FOLDER] [--minutes N]
    .venv/bin/python benchmarks/panels.py --redraw [--out FOLDER]

Grafana is not needed, and no proof of it: what is drawn is each panel's own queries over the run
(:mod:`panel_drawing`), so that somebody can look whether they show anything. What they found stays
in `series.json`, from which ``--redraw`` draws again. Beside them `top.txt` and `top.svg`, what
`tidegate top` says at the height of the load, and each row of a dashboard by itself (`pool-8.png`).
The load: a paid tenant that asks now and then, a tenant of the same tier that comes with far more
than its share for a third of the time, one at its rate limit, and a batch that always waits, on an
engine with room for four.
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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from live_pool import History, LivePool, cluster_of, live_pool, local_cluster
from panel_drawing import STEP_SECONDS, Drawing, Series, Span
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
TERMINAL_COLUMNS = 170
VARIABLES = {"$namespace": NAMESPACE, "$pool": "pool", "$__rate_interval": "1m"}
"""As Grafana fills them in, of the last hours and with scrapes every 15 s."""
SERIES = "series.json"


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
        span = Span(round(begin), round(time.time()))
        found = {
            name: await asked(dashboard, live.prometheus, span) for name, dashboard in dashboards()
        }
    stored = {"span": span._asdict(), "dashboards": found}
    (arguments.out / SERIES).write_text(json.dumps(stored))
    draw(arguments.out)


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


def dashboards() -> Iterator[tuple[str, Json]]:
    """Name and content of each."""
    for path in sorted((ROOT / "manifests" / "monitoring").glob("*.json")):
        yield path.stem, json.loads(path.read_text())


async def asked(dashboard: Json, prometheus: Prometheus, span: Span) -> dict[str, list[Series]]:
    """What its queries find in that time, by the panels' ids."""
    found: dict[str, list[Series]] = {}
    for panel in dashboard["panels"]:
        series = found[str(panel["id"])] = list[Series]()
        for target in panel.get("targets", ()):
            query = target["expr"]
            for name, value in VARIABLES.items():
                query = query.replace(name, value)
            answer = await prometheus.get(
                "/api/v1/query_range",
                query=query,
                start=f"{span.begin:.0f}",
                end=f"{span.end:.0f}",
                step=str(STEP_SECONDS),
            )
            for one in answer["data"]["result"]:
                labels: dict[str, str] = one["metric"]
                legend = _legend(target["legendFormat"], labels)
                subject = labels.get("tenant") or labels.get("tier") or ""
                points = [(at, float(v)) for at, v in one["values"] if math.isfinite(float(v))]
                if points:
                    series.append(Series(target["refId"], legend, subject, points))
    return found


def _legend(template: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda name: labels.get(name[1], ""), template)


def draw(out: Path) -> None:
    """All dashboards, from what was found when the load ran."""
    found = json.loads((out / SERIES).read_text())
    drawing = Drawing(Span(**found["span"]))
    for name, dashboard in dashboards():
        series = found["dashboards"][name]
        picture = out / f"{name}.png"
        panels = {panel: [Series(*one) for one in series[panel]] for panel in series}
        drawing.dashboard(dashboard, panels, picture)
        print(picture)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cluster", help="this running local cluster, instead of one of its own")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "panels")
    parser.add_argument("--minutes", type=float, default=9.0, help="of load [9]")
    parser.add_argument("--redraw", action="store_true", help="what an earlier run left there")
    arguments = parser.parse_args()
    if arguments.redraw:
        draw(arguments.out)
        return
    with local_cluster(arguments.cluster) as local:
        asyncio.run(run(arguments, local))


if __name__ == "__main__":
    main()
