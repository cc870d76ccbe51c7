"""A real Prometheus: what is asked of it for scaling, and every query of the dashboards."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import generate_latest
from support.faulty_engine import FaultyEngine
from support.sidecar import SidecarUnderTest, policy_document, sidecar_under_test
from tidegate_operator.api.figures import Measured
from tidegate_operator.autoscale.prometheus import Told, ask
from tidegate_operator.autoscale.signals import Burn
from tidegate_operator.metrics import Metrics
from tidegate_operator.slo import budget_reader, rule_groups
from tidegate_operator.slo.promises import promises_of
from tidegate_operator.slo.recorded import Recorded
from tidegate_operator.slo.rules import BUDGET_ALERT

from testbed.prometheus import Prometheus, backfill_burn, running_prometheus, until_true
from tidegate.scheduling.contracts import SloMetric, SloObjective, TierPolicy

pytestmark = pytest.mark.integration

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[3]
DASHBOARDS = ROOT / "manifests" / "monitoring"
POOL = "team-a/chat"
PLACE = {"namespace": "team-a", "tidegate_io_pool": "chat"}
TTFT = SloObjective(SloMetric.TIME_TO_FIRST_TOKEN, 0.5, 99.0)
TIERS = [TierPolicy("standard", slo_objectives=(TTFT,))]


def history(programs: Path, folder: Path) -> None:
    """Two hours, in whose last ten minutes every promise was broken."""
    backfill_burn(programs, folder, PLACE | {"tier": "standard"}, burning_seconds=600.0)


async def test_burn_rates_and_alerts_as_a_real_prometheus_has_them(
    programs: Path, tmp_path: Path
) -> None:
    """It stands at half a page's hour: the five minutes burn 100 times the budget, the hour 16."""
    history(programs, tmp_path)
    groups = rule_groups("team-a", "chat", TIERS, "")
    async with aiohttp.ClientSession() as session:
        async with running_prometheus(programs, tmp_path, groups) as prometheus:

            async def asked() -> Told:
                return await ask(session, prometheus.address, POOL, TIERS, time.time())

            async def told() -> Told | None:
                found = await asked()
                return found if found.alerts and not isinstance(found.burns, str) else None

            found = await until_true(told, "an alert that fires")
            (burn,) = found.burns
            assert isinstance(burn, Burn)
            assert burn.short == pytest.approx(100.0, rel=0.05)
            assert burn.long == pytest.approx(100.0 / 6, rel=0.2)
            severities = {(alert.name, alert.severity, alert.tier) for alert in found.alerts}
            assert (BUDGET_ALERT, "page", "standard") in severities
            other = await ask(session, prometheus.address, "team-a/other", TIERS, time.time())
            assert "has no series" in str(other.burns)
            assert other.alerts == other.burns
            await a_budget_is_overspent(session, prometheus)
            late = await ask(session, prometheus.address, POOL, TIERS, time.time() + 3600)
            assert "too old" in str(late.burns)
        gone = await asked()
        silent = await budget_reader.ask(session, prometheus.address, POOL)
        assert "does not answer" in str(silent)
        assert "does not answer" in str(gone.burns)


async def a_budget_is_overspent(session: aiohttp.ClientSession, prometheus: Prometheus) -> None:
    """As a pool's status and its condition SLOMet have it."""

    async def left() -> Recorded | None:
        found = await budget_reader.ask(session, prometheus.address, POOL)
        return found if isinstance(found, Recorded) and found.recorded_at else None

    budgets = await until_true(left, "a recorded budget")
    (promise,) = promises_of(POOL, TIERS, {}, budgets)
    assert (promise.met, promise.measured) == (False, Measured.WINDOW)
    assert promise.budget_left_percent is not None
    assert promise.budget_left_percent < 0
    other = await budget_reader.ask(session, prometheus.address, "team-a/other")
    assert isinstance(other, Recorded)
    assert not other.recorded_at


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (web.Response(status=503, text="secret"), "Prometheus answers 503"),
        (web.Response(status=302, headers={"Location": "/"}), "Prometheus answers 302"),
        (web.Response(text="secret"), "not its API's JSON"),
        (web.json_response({"data": {"resultType": "scalar", "result": [0, "1"]}}), "a vector"),
        (web.json_response({"data": {"resultType": "vector", "result": ["x"]}}), "API's JSON"),
        (None, "does not answer (TimeoutError)"),
    ],
    ids=["error", "redirect", "text", "scalar", "shape", "never"],
)
async def test_whatever_answers_there_is_a_reason_and_never_its_text(
    monkeypatch: pytest.MonkeyPatch, answer: web.Response | None, why: str
) -> None:
    timeout = aiohttp.ClientTimeout(total=0.2)
    monkeypatch.setattr("tidegate_operator.prometheus_query.TIMEOUT", timeout)

    async def handler(request: web.Request) -> web.Response:
        if answer is None:
            await asyncio.sleep(30)
            raise AssertionError
        headers = {k: v for k, v in answer.headers.items() if k in ("Location", "Content-Type")}
        return web.Response(status=answer.status, body=answer.body, headers=headers)

    async with served(handler) as address, aiohttp.ClientSession() as session:
        found = await ask(session, address, POOL, TIERS, time.time())
    assert why in str(found.burns)
    assert "secret" not in str(found.burns)
    assert found.alerts == found.burns


@asynccontextmanager
async def served(handler: Any) -> AsyncIterator[str]:
    """The base URL of a server that answers everything so."""
    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


# --- dashboards


def panels(dashboard: Json) -> Iterator[tuple[str, str]]:
    """Title and query of every panel, with the dashboard's variables filled in."""
    values = {"$namespace": "team-a", "$pool": "chat", "$__rate_interval": "1m"}
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            for name, value in values.items():
                query = query.replace(name, value)
            yield f"{dashboard['title']}: {panel['title']}: {query}", query


def variables(dashboard: Json) -> Iterator[str]:
    """A query with a result wherever the variable has a choice."""
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert found is not None, variable
            yield f"count by ({found[2]}) ({found[1].replace('$namespace', 'team-a')})"


async def traffic(sidecar: SidecarUnderTest) -> None:
    """Requests that are served, and one that is refused."""
    for _ in range(3):
        async with sidecar.chat() as answer:
            assert answer.status == 200
    async with sidecar.chat(model="unknown") as answer:
        assert answer.status == 404


async def test_every_query_of_the_dashboards_finds_what_it_asks_for(
    programs: Path, tmp_path: Path
) -> None:
    """Real sidecar, real operator metrics, real Prometheus. An alert fires, by the history."""
    files = sorted(DASHBOARDS.glob("*.json"))
    dashboards = [json.loads(file.read_text()) for file in files]
    assert len({dashboard["uid"] for dashboard in dashboards}) == len(files) > 0
    operator = Metrics()
    operator.applies.labels("Service").inc()
    operator.status_writes.labels("ServingPool").inc()

    async def operator_metrics(request: web.Request) -> web.Response:
        operator.reconcile_seconds.observe(0.1)
        return web.Response(body=generate_latest(operator.registry))

    history(programs, tmp_path)
    kv_pools = [{"name": "all", "tiers": ["standard"], "percent": 50}]
    metrics = (SloMetric.TIME_TO_FIRST_TOKEN, SloMetric.INTER_TOKEN_LATENCY)
    promised = [{"metric": metric, "target_seconds": 30} for metric in metrics]
    policy = policy_document(kv_pools=kv_pools, tier={"slo_objectives": promised})
    async with (
        FaultyEngine() as engine,
        sidecar_under_test(tmp_path, engine, policy=policy) as sidecar,
        served(operator_metrics) as operator_url,
    ):
        scrapes = [
            scrape("sidecar", sidecar.admin_url, PLACE | {"pod": "chat-0"}),
            scrape("operator", operator_url, {"pod": "operator-0"}),
        ]
        groups = rule_groups("team-a", "chat", TIERS, "")
        async with running_prometheus(programs, tmp_path, groups, scrapes) as prometheus:

            async def scraped() -> bool:
                return len(await prometheus.query("up == 1")) == len(scrapes)

            await until_true(scraped, "both to be scraped")
            await traffic(sidecar)
            for dashboard in dashboards:
                for what, query in panels(dashboard):
                    found = await has_a_result(prometheus, what, query)
                    if "over_baseline" in query:  # a gap, where nothing is known yet
                        assert [row["value"][1] for row in found] == ["NaN"]
                    if "by tenant" in what and "Refused" not in what:
                        assert all(row["metric"] for row in found), what
                for query in variables(dashboard):
                    await has_a_result(prometheus, dashboard["title"], query)


def scrape(job: str, url: str, labels: dict[str, str]) -> Json:
    targets = [{"targets": [url.removeprefix("http://")], "labels": labels}]
    return {"job_name": job, "static_configs": targets}


async def has_a_result(prometheus: Prometheus, what: str, query: str) -> list[Json]:
    result: list[Json] = []

    async def found() -> bool:
        result[:] = await prometheus.query(query)
        return bool(result)

    await until_true(found, what)
    return result


def test_the_scrape_configuration_of_the_documentation_is_one(
    programs: Path, tmp_path: Path
) -> None:
    """docs/operations.md, for a Prometheus that no operator runs. Debian's was built without the
    discovery of pods, so that one line is taken as it is."""
    page = (ROOT / "docs" / "operations.md").read_text()
    marked = page.partition("<!-- checked by promtool")[2]
    config = tmp_path / "prometheus.yaml"
    text = marked.partition("```yaml\n")[2].partition("```")[0]
    text, found = re.subn("kubernetes_sd_configs: .*", "static_configs: []", text)
    assert found == 2
    config.write_text(text)
    command = [programs / "promtool", "check", "config", "--syntax-only", config]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
