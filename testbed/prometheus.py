"""Prometheus' own programs, for what only they can judge: rules, queries, alerts."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tidegate.local_cluster.ports import free_ports

Json = dict[str, Any]
REPOSITORY = Path(__file__).parents[1]


def prometheus_programs() -> Path:
    """The folder of prometheus, promtool and alertmanager; brought on the first call."""
    made = subprocess.run(
        [REPOSITORY / "scripts/install-prometheus"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=280,
    )
    return Path(made.stdout.strip())


def backfill(
    programs: Path, data: Path, series: Mapping[str, Iterable[tuple[float, float]]]
) -> None:
    """Give a Prometheus a history: counters by name, as (seconds since the epoch, value)."""
    names: dict[str, list[str]] = {}
    for full, samples in series.items():
        name = full.partition("{")[0]
        names.setdefault(name, []).extend(f"{full} {value:.12g} {at:.3f}" for at, value in samples)
    text = data.with_suffix(".openmetrics")
    with text.open("w") as file:
        for name, lines in names.items():
            file.write(f"# TYPE {name.removesuffix('_total')} counter\n")
            file.writelines(f"{line}\n" for line in lines)
        file.write("# EOF\n")
    command = ["tsdb", "create-blocks-from", "openmetrics", str(text), str(data)]
    subprocess.run([programs / "promtool", *command], check=True, capture_output=True, timeout=60)


def backfill_burn(
    programs: Path, folder: Path, labels: Mapping[str, str], *, burning_seconds: float
) -> None:
    """Two hours of one objective, a request every 1.5 s: until so long ago every promise was kept,
    and none since. ``labels`` are its namespace, pool and tier."""
    now, step = time.time(), 15.0
    place = labels | {"objective": "TimeToFirstToken", "pod": "chat-0"}
    told = ",".join(f'{name}="{value}"' for name, value in place.items())
    requests = [(now - 7200 + step * number, 10.0 * number) for number in range(480)]
    kept = 10.0 * ((7200 - burning_seconds) // step)
    good = [(at, min(value, kept)) for at, value in requests]
    backfill(
        programs,
        folder / "data",
        {
            f"tidegate_slo_requests_total{{{told}}}": requests,
            f"tidegate_slo_good_total{{{told}}}": good,
        },
    )


class Prometheus:
    """A running Prometheus."""

    def __init__(self, address: str, client: aiohttp.ClientSession) -> None:
        self.address = address
        self._client = client

    async def get(self, path: str, **parameters: str) -> Json:
        """An answer of its API; fails where that is an error."""
        async with self._client.get(f"{self.address}{path}", params=parameters) as response:
            answer: Json = await response.json(content_type=None)
            assert response.status == 200, answer
            return answer

    async def query(self, query: str) -> list[Json]:
        """The instant vector that a query has now."""
        answer = await self.get("/api/v1/query", query=query)
        found: list[Json] = answer["data"]["result"]
        return found


@contextlib.asynccontextmanager
async def running_prometheus(
    programs: Path,
    folder: Path,
    groups: Sequence[Json],
    scrapes: Sequence[Json] = (),
    *,
    interval: str = "1s",
    alertmanager: str | None = None,
) -> AsyncIterator[Prometheus]:
    """A Prometheus on the history in ``folder``/data that evaluates these rule groups, and scrapes,
    every ``interval``. ``alertmanager``: host:port of one that it tells."""
    every = {"scrape_interval": interval, "evaluation_interval": interval}
    config: Json = {"global": every, "rule_files": ["rules.yaml"], "scrape_configs": list(scrapes)}
    if alertmanager is not None:
        told = {"static_configs": [{"targets": [alertmanager]}]}
        config["alerting"] = {"alertmanagers": [told]}
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": list(groups)}))
    port = free_ports(1)[0]
    arguments = [
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    async with _running(programs / "prometheus", arguments, port) as client:
        yield Prometheus(f"http://127.0.0.1:{port}", client)


@contextlib.asynccontextmanager
async def running_alertmanager(programs: Path, folder: Path, webhook: str) -> AsyncIterator[str]:
    """An Alertmanager that posts to this URL as soon as an alert fires, and again once it is
    resolved; its host:port."""
    receiver = {"name": "webhook", "webhook_configs": [{"url": webhook}]}
    soon = {"group_wait": "1s", "group_interval": "5s", "repeat_interval": "24h"}
    config = {"route": {"receiver": "webhook", "group_by": ["..."], **soon}}
    (folder / "alertmanager.yaml").write_text(yaml.safe_dump({**config, "receivers": [receiver]}))
    port = free_ports(1)[0]
    arguments = [
        f"--config.file={folder / 'alertmanager.yaml'}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
        "--log.level=warn",
    ]
    async with _running(programs / "alertmanager", arguments, port):
        yield f"127.0.0.1:{port}"


@contextlib.asynccontextmanager
async def _running(
    program: Path, arguments: Sequence[str], port: int
) -> AsyncIterator[aiohttp.ClientSession]:
    """The program until the end, once it says that it is ready."""
    process = await asyncio.create_subprocess_exec(program, *arguments)
    try:
        async with aiohttp.ClientSession() as client:

            async def ready() -> bool:
                with contextlib.suppress(aiohttp.ClientError):
                    async with client.get(f"http://127.0.0.1:{port}/-/ready") as response:
                        return response.status == 200
                return False

            await until_true(ready, f"{program.name} to be ready", 60.0)
            yield client
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def until_true(check: Any, what: str, seconds: float = 30.0) -> Any:
    """The first true answer of an async ``check``; fails, naming ``what``, when none comes."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := await check():
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(f"not in {seconds:g} s: {what}")
