"""The benchmarks' own parts: a figure's verdict, and a load client that notices wrong answers."""

import asyncio
import importlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def report() -> ModuleType:
    return importlib.import_module("report")


@pytest.fixture
def client() -> ModuleType:
    return importlib.import_module("load_client")


@pytest.fixture
async def engine() -> AsyncIterator[int]:
    canned = importlib.import_module("canned_engine")
    loop = asyncio.get_running_loop()
    server = await loop.create_server(canned.CannedEngine, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("value", "op", "met"),
    [(0.6, ">=", True), (0.59, ">=", False), (2.0, "<=", False), (0.6, "<=", True)],
)
def test_a_figure_is_met_by_its_aim(report: ModuleType, value: float, op: str, met: bool) -> None:
    assert report.figure("f", value, "ratio", report.Aim(op, 0.6)).met is met


def test_a_figure_without_a_value_says_why(report: ModuleType) -> None:
    missing = report.figure("f", None, "ratio", report.Aim(">=", 1), "not installed")
    assert missing.met is None
    with pytest.raises(ValueError, match="needs a reason"):
        report.figure("f", None, "ratio", report.Aim(">=", 1))


def test_the_json_has_figures_with_their_aims(report: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    report.write_json(path, "proxy", [report.figure("f", 2.0, "1/s", report.Aim(">=", 1))])
    written = json.loads(path.read_text())
    assert written["figures"] == [
        {
            "name": "f",
            "value": 2.0,
            "unit": "1/s",
            "aim": {"op": ">=", "value": 1},
            "met": True,
            "why": "",
        }
    ]


async def measured(client: ModuleType, port: int, check: Any, **body: object) -> Any:
    return await client.load(
        port,
        {"model": "bench-model", "messages": [], **body},
        "key",
        check,
        connections=2,
        warm_up_seconds=0.0,
        seconds=0.1,
        meter=lambda: 0.0,
    )


@pytest.mark.parametrize(
    ("check", "body"),
    [
        ("check_whole", {"max_tokens": 16}),
        ("check_stream", {"max_tokens": 16, "stream": True}),
        (
            "check_stream",
            {"max_tokens": 16, "stream": True, "stream_options": {"include_usage": 1}},
        ),
    ],
    ids=["whole", "stream", "stream with usage"],
)
async def test_right_answers_are_timed(
    client: ModuleType, engine: int, check: str, body: dict[str, object]
) -> None:
    outcome = await measured(client, engine, getattr(client, check)(16), **body)
    assert outcome.wrong == 0
    assert outcome.latencies_ms
    assert outcome.percentile_ms(50) <= outcome.percentile_ms(99)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_wrong_answer_is_counted_and_not_timed(
    client: ModuleType, engine: int, stream: bool
) -> None:
    check = client.check_stream(17) if stream else client.check_whole(17)
    outcome = await measured(client, engine, check, max_tokens=16, stream=stream)
    assert outcome.wrong == 2  # each connection stops at its first
    assert "16 words" in outcome.errors[0]
    assert not outcome.latencies_ms


async def test_a_server_that_hangs_up_is_a_wrong_answer(client: ModuleType) -> None:
    class HangsUp(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.close()

    server = await asyncio.get_running_loop().create_server(HangsUp, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        outcome = await measured(client, port, client.check_whole(1))
    assert outcome.wrong == 2
    assert "closed" in outcome.errors[0]


@pytest.mark.parametrize("piece_bytes", [1, 4, 7])
async def test_chunks_cut_anywhere_give_the_same_body(client: ModuleType, piece_bytes: int) -> None:
    class Sink:
        def write(self, data: bytes) -> None: ...

    canned = importlib.import_module("canned_engine")
    answer = b"".join(canned.streamed_answer(3, True, True))
    outcome = client.Outcome()
    connection = client._Connection(b"", client.check_stream(3), outcome)
    connection.connection_made(Sink())
    connection.counting = True
    for _ in range(2):
        for at in range(0, len(answer), piece_bytes):
            connection.data_received(answer[at : at + piece_bytes])
    assert outcome.errors == []
    assert len(outcome.latencies_ms) == 2


async def test_requests_at_a_rate_are_as_many_as_are_due(client: ModuleType, engine: int) -> None:
    began = time.perf_counter()
    outcome = await client.load(
        engine,
        {"model": "bench-model", "messages": [], "max_tokens": 1},
        "key",
        client.check_whole(1),
        connections=2,
        warm_up_seconds=0.05,
        seconds=0.2,
        per_second=100.0,
    )
    assert outcome.errors == []
    assert 0 < len(outcome.latencies_ms) <= 100 * (time.perf_counter() - began) + 1


def test_what_is_due_while_no_connection_is_free_counts_from_then(client: ModuleType) -> None:
    class Connection:
        def __init__(self) -> None:
            self.due: list[float] = []

        def send(self, due_at: float) -> None:
            self.due.append(due_at)

    pacer, connection = client._Pacer(100.0), Connection()
    pacer.send()
    before = time.perf_counter()
    pacer.freed(connection)
    assert connection.due[0] <= before
    pacer.freed(connection)
    pacer.send()
    assert connection.due[1] >= before


async def test_a_slowed_upstream_shows_its_gaps(
    client: ModuleType, engine: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    canned = importlib.import_module("canned_engine")
    monkeypatch.setattr(canned.CannedEngine, "pace_seconds", 0.02)
    outcome = await measured(client, engine, client.check_stream(2), max_tokens=2, stream=True)
    assert outcome.errors == []
    assert outcome.longest_gap_ms >= 10
