"""Scaling on a page: a surge burns the budget, the group grows, the alert clears, it shrinks.

A real pool on the local cluster, with the real Prometheus and Alertmanager: days of history are
loaded with promtool, the rules are those of `tidegate rules`, and no window of an alert is
shortened. Then the load generator sends what one pod serves with ease, and for seven minutes more
than it can: the throttle refuses what it could not serve in time, which spends the budget of the
hour. The engines are fakes of 16 seats that take a quarter of a second for a step, so that what is
measured is not how fast two cores are. By default only alerts are scaled by; `--signals` names
others.

Counted on the way down is every request that was under way when the operator decided, or came
later, and got no whole answer: cut off, or refused before anything was done for it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

from aiohttp import web
from autoscale_timeline import (
    BACK_SECONDS,
    Event,
    Moment,
    Promise,
    burn_seconds,
    first,
    kept_again,
    kept_ratio,
    lost_since,
    seconds_between,
)
from live_pool import History, LivePool, cluster_of, live_pool, local_cluster
from report import Aim, Figure, benchmark, figure
from rich.console import Console

from testbed.e2e_cluster import Scene, condition
from tidegate.load import LoadRun, Sample, SampleState
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
from tidegate.simulator.engine_model import CALIBRATIONS, Engine, EngineConfig, EngineRequest
from tidegate.workload import Workload

Json = dict[str, Any]

NAMESPACE, TIER = "bench-autoscale", "t0"
PROMISE = Promise(2.0, 0.995)
SEATS, TIME_SCALE, START_SECONDS = 16, 14.0, 20.0
PROMPT_TOKENS, OUTPUT_TOKENS = 100, 16
CALIBRATION = "h100_70b_tp8"
CALM, SURGE = 0.35, 1.5
"""Of one pod's capacity: what comes always, and in the surge."""
HISTORY_DAYS, HISTORY_BROKEN = 4.0, 0.001
CALM_SECONDS, SURGE_SECONDS, AFTER_SECONDS = 60.0, 420.0, 450.0
DOWN = {"window": "2m", "cooldown": "1m"}
MOST_PODS = 6
LOOK_SECONDS = 2.0
BACK_AIM_SECONDS = 60.0


def options(parser: argparse.ArgumentParser) -> None:
    """The benchmark's own."""
    parser.add_argument("--cluster", help="this running local cluster, instead of one of its own")
    parser.add_argument(
        "--signals",
        nargs="+",
        default=["Alerts"],
        choices=["Alerts", "BurnRate", "QueueWait"],
        help="what the pool is scaled by [Alerts]",
    )


def pod_requests_per_second() -> float:
    """What one engine serves with all its seats taken, by its model."""
    config = EngineConfig(
        step_time=CALIBRATIONS[CALIBRATION].step_time.scaled(TIME_SCALE),
        num_gpu_blocks=10_000,
        block_size=16,
        max_num_seqs=SEATS,
        max_num_batched_tokens=2_048,
        enable_prefix_caching=False,
    )
    engine, count, now = Engine(config), 20 * SEATS, 0.0
    for number in range(count):
        engine.add(EngineRequest(str(number), PROMPT_TOKENS, OUTPUT_TOKENS))
    while engine.has_work:
        now = engine.step(now).ends_at
    return count / now


def scene_of(arguments: argparse.Namespace, cluster: Any) -> Scene:
    """A pool of one pod for one promised tier, not scaled yet."""
    objective = {
        "metric": "TimeToFirstToken",
        "target": f"{PROMISE.target_seconds:g}s",
        "ratio": f"{100 * PROMISE.ratio:g}",
    }
    return Scene(
        cluster,
        NAMESPACE,
        tiers={TIER: {"slo": {"objectives": [objective]}, "queue": {"maxWait": "30s"}}},
        tenants={name: {"tier": TIER} for name in ("steady", "surge")},
        engine_args=[f"--max-num-seqs={SEATS}"],
        engine_env={
            "TIDEGATE_FAKE_CALIBRATION": CALIBRATION,
            "TIDEGATE_FAKE_TIME_SCALE": f"{TIME_SCALE:g}",
            "TIDEGATE_FAKE_STARTUP_DELAY": f"{START_SECONDS:g}",
            "TIDEGATE_FAKE_IGNORE_EOS": "1",
        },
    )


def scenario_of(pod_per_second: float) -> Scenario:
    """Both tenants for the whole run, the surge one in its middle."""

    def tenant(name: str, rate: float, **when: Any) -> TenantLoad:
        return TenantLoad(
            name=name,
            tier=TIER,
            arrival=Arrival(ArrivalProcess.POISSON, rate_per_second=rate),
            endpoint=Endpoint.COMPLETIONS,
            prompt_as_token_ids=True,
            prompt_tokens=LengthDistribution(LengthShape.CONSTANT, value=PROMPT_TOKENS),
            output_tokens=LengthDistribution(LengthShape.CONSTANT, value=OUTPUT_TOKENS),
            **when,
        )

    more = (SURGE - CALM) * pod_per_second
    return Scenario(
        version=SCENARIO_VERSION,
        name="autoscale",
        model=Scene.model,
        seed=8,
        duration_seconds=CALM_SECONDS + SURGE_SECONDS + AFTER_SECONDS,
        drain_seconds=60.0,
        tenants=(
            tenant("steady", CALM * pod_per_second),
            tenant("surge", more, start_seconds=CALM_SECONDS, requests=round(more * SURGE_SECONDS)),
        ),
    )


class Watch:
    """Everything that changes, as moments; each is printed when it is seen."""

    def __init__(self, console: Console) -> None:
        self.moments: list[Moment] = []
        self.pool: Json = {}
        self._console = console
        self._steps: set[tuple[str, int, int]] = set()
        self._ready: set[str] = set()
        self._going: set[str] = set()
        self._pods: set[str] = set()
        self._firing: set[str] = set()
        self._said = ""

    def note(self, event: Event, text: str = "", at: float | None = None) -> None:
        moment = Moment(time.time() if at is None else at, event, text)
        self.moments.append(moment)
        clock = datetime.fromtimestamp(moment.at).strftime("%H:%M:%S")
        self._console.print(f"{clock} {event}: {text}", style="dim", highlight=False)

    async def run(self, live: LivePool) -> None:
        """Look until cancelled."""
        while True:
            pool, pods = await asyncio.to_thread(live.look)
            self._note_pool(pool)
            self._note_pods(
                [p for p in pods if "tidegate.io/engine-group" in p["metadata"]["labels"]]
            )
            self._note_alerts((await live.prometheus.get("/api/v1/alerts"))["data"]["alerts"])
            await asyncio.sleep(LOOK_SECONDS)

    def _note_pool(self, pool: Json) -> None:
        self.pool = pool
        for step in reversed(pool["status"].get("scaling", {}).get("history", [])):
            before, after = step["fromReplicas"], step["toReplicas"]
            key = step["time"], before, after
            if key not in self._steps:
                self._steps.add(key)
                event = Event.GROWS if after > before else Event.SHRINKS
                text = f"{before} to {after}, {step['reason']}: {step['message']}"
                self.note(event, text, _seconds(step["time"]))
        said = condition(pool, "Autoscaling").get("message", "")
        if said != self._said:
            self._said = said
            self.note(Event.SAYS, said)

    def _note_pods(self, pods: Sequence[Json]) -> None:
        for pod in pods:
            name = pod["metadata"]["name"]
            ready = condition(pod, "Ready")
            if ready.get("status") == "True" and name not in self._ready:
                self._ready.add(name)
                self.note(Event.READY, name, _seconds(ready["lastTransitionTime"]))
            if "deletionTimestamp" in pod["metadata"] and name not in self._going:
                self._going.add(name)
                self.note(Event.DRAINS, name)
        names = {pod["metadata"]["name"] for pod in pods}
        for name in self._pods - names:
            self.note(Event.GONE, name)
            self._ready.discard(name)
            self._going.discard(name)
        self._pods = names

    def _note_alerts(self, alerts: Sequence[Json]) -> None:
        firing = {_alert_name(alert): alert for alert in alerts if alert["state"] == "firing"}
        for name in firing.keys() - self._firing:
            self.note(Event.FIRES, name, _seconds(firing[name]["activeAt"]))
        for name in self._firing - firing.keys():
            self.note(Event.CLEARED, name)
        self._firing = set(firing)

    @contextlib.asynccontextmanager
    async def webhook(self) -> AsyncIterator[str]:
        """The URL to which an Alertmanager shall post."""

        async def told(request: web.Request) -> web.Response:
            for alert in (await request.json())["alerts"]:
                event = Event.TOLD if alert["status"] == "firing" else Event.RESOLVED
                self.note(event, _alert_name(alert))
            return web.Response()

        app = web.Application()
        app.router.add_post("/", told)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
        finally:
            await runner.cleanup()


def _alert_name(alert: Json) -> str:
    labels = alert["labels"]
    return f"{labels['alertname']} ({labels['severity']}) of tier {labels['tier']}"


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def measure(arguments: argparse.Namespace, console: Console) -> Sequence[Figure]:
    """Runs it once; about 18 minutes."""
    with local_cluster(arguments.cluster) as local:
        return asyncio.run(_measure(arguments, console, local))


async def _measure(arguments: argparse.Namespace, console: Console, local: Any) -> Sequence[Figure]:
    pod = pod_requests_per_second()
    scenario = scenario_of(pod)
    past = History(HISTORY_DAYS, CALM * pod, HISTORY_BROKEN)
    expected = burn_seconds(
        budget=1 - PROMISE.ratio,
        broken=1 - 1 / SURGE,
        surge_per_second=SURGE * pod,
        history_per_second=past.requests_per_second,
    )
    console.print(
        f"a pod serves {pod:.2f} requests/s; {CALM * pod:.2f} come always and {SURGE * pod:.2f} in "
        f"the surge; the page is expected after {expected:.0f} s of it",
        style="dim",
        highlight=False,
    )
    watch = Watch(console)
    scene = scene_of(arguments, cluster_of(local))
    async with (
        watch.webhook() as webhook,
        live_pool(local, scene, {TIER: past}, webhook) as live,
    ):
        scene.pool_spec = {
            "observability": {"prometheus": live.prometheus.address},
            "autoscaling": {
                "maxPerGroup": MOST_PODS,
                "signals": arguments.signals,
                "scaleDown": DOWN,
            },
        }
        await asyncio.to_thread(scene.cluster.apply, scene.pool())
        keys = {name: scene.key(name) for name in scene.tenants}
        run = LoadRun(Workload(scenario), await asyncio.to_thread(lambda: scene.endpoint), keys)
        looks = asyncio.create_task(watch.run(live))
        try:
            await run.run()
        finally:
            looks.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looks
    moments = timeline(watch.moments, run)
    for moment in moments:
        after = moment.at - run.started_at - CALM_SECONDS
        console.print(f"{after:+7.0f} s  {moment.event}  {moment.text}", highlight=False)
    return figures(moments, run, expected)


def timeline(seen: Sequence[Moment], run: LoadRun) -> list[Moment]:
    """With what the load generator saw."""
    start = run.started_at
    surge, end = start + CALM_SECONDS, start + CALM_SECONDS + SURGE_SECONDS
    moments = [
        *(moment for moment in seen if moment.event is not Event.SAYS),
        Moment(start, Event.LOAD),
        Moment(surge, Event.SURGE),
        Moment(end, Event.SURGE_ENDS),
        Moment(start + run.scenario.duration_seconds, Event.END),
    ]
    broken = [s.began for s in run.samples if not PROMISE.kept(s) and s.began >= CALM_SECONDS]
    if broken:
        moments.append(Moment(start + min(broken), Event.BROKEN))
    ready = first(moments, Event.READY, since=surge)
    back = kept_again(run.samples, PROMISE, (ready.at if ready else surge) - start)
    if back is not None:
        moments.append(Moment(start + back, Event.BACK))
    return sorted(moments)


def figures(moments: Sequence[Moment], run: LoadRun, expected: float) -> list[Figure]:
    """Of one run."""
    surge, surge_ends = first(moments, Event.SURGE), first(moments, Event.SURGE_ENDS)
    assert surge is not None
    assert surge_ends is not None
    fires = first(moments, Event.FIRES)
    grows, shrinks = first(moments, Event.GROWS), first(moments, Event.SHRINKS)
    ready, back = first(moments, Event.READY, since=surge.at), first(moments, Event.BACK)
    cleared = first(moments, Event.CLEARED, since=surge.at)
    ups = [moment for moment in moments if moment.event is Event.GROWS]
    downs = [moment for moment in moments if moment.event is Event.SHRINKS]
    start = run.started_at
    calm = kept_ratio(run.samples, PROMISE, 0.0, CALM_SECONDS)
    lost = lost_since(run.samples, (shrinks.at if shrinks else surge_ends.at) - start)
    return [
        figure("promise kept before the surge", 100 * calm, "%", Aim(">=", 99.5)),
        figure(
            "surge begins to alert fires",
            seconds_between(surge, fires),
            "s",
            why=f"{expected:.0f} if only what one pod can't serve were broken"
            if fires
            else "no alert fired",
        ),
        figure(
            "alert fires to operator adds pods",
            seconds_between(fires, grows),
            "s",
            why="" if fires and grows else "there was no alert, or no step",
        ),
        figure(
            "operator adds pods to pod Ready",
            seconds_between(grows, ready),
            "s",
            why=f"{START_SECONDS:g} of them the engine's" if ready else "no pod came",
        ),
        figure(
            "pod Ready to promise kept again",
            seconds_between(ready, back),
            "s",
            Aim("<=", BACK_AIM_SECONDS),
            f"for {BACK_SECONDS:g} s" if back else "it never was",
        ),
        figure(
            "promise kept again to alert cleared",
            seconds_between(back, cleared),
            "s",
            why="its short window has 5 min" if back and cleared else "there was no alert",
        ),
        figure("steps up", len(ups), "", why="; ".join(moment.text for moment in ups)),
        figure("steps down", len(downs), "", why="; ".join(moment.text for moment in downs)),
        figure("steps up after the first down", reversed_steps(moments), "", Aim("<=", 0)),
        *(
            figure(
                f"requests {name} on the way down",
                len(some),
                "",
                Aim("<=", 0),
                _told(some) if shrinks else "it never shrank: counted from the surge's end",
            )
            for name, some in (
                ("cut off", [s for s in lost if s.state is not SampleState.REFUSED]),
                ("refused", [s for s in lost if s.state is SampleState.REFUSED]),
            )
        ),
    ]


def reversed_steps(moments: Sequence[Moment]) -> int:
    """Steps up that undo one down."""
    down = first(moments, Event.SHRINKS)
    return sum(m.event is Event.GROWS and m.at > down.at for m in moments) if down else 0


def _told(samples: Sequence[Sample]) -> str:
    return ", ".join(sorted({f"{s.state} {s.reason}".strip() for s in samples}))


if __name__ == "__main__":
    sys.exit(benchmark("autoscale", __doc__ or "", measure, options))
