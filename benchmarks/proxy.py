"""What a request costs in the sidecar, beside other proxies: requests and streams a second.

In one run on loopback: no proxy, a bare aiohttp pass-through, the sidecar, the router (the edge
alone), vllm-router (Rust) and LiteLLM, one at a time. The proxy has one core for itself; the canned
upstream and the load client share another. Same bodies, same key; 16 connections, each sending its
next request when answered; every answer is checked. Three cells each: answers of 16 tokens in one
piece, streams of 50 events, and, to be read beside them, answers of 50 tokens in one piece, which
the sidecar joins from a stream. Then what it adds at a quiet rate and what long streams get through
it (``proxy_pace``).

The upstream answers at once, so the figures say what the proxies cost, not what a model would do.
The processor time of a request is read as well, from the proxy's processes: unlike the rate it is
nearly the same on a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import proxy_pace
import rivals
import uvloop
from canned_engine import MODEL
from load_client import Outcome, check_stream, check_whole, load
from report import Aim, Figure, benchmark, figure
from rich.console import Console
from rich.table import Table

CONNECTIONS = 16
WARM_UP_SECONDS = 1.5
WHOLE_TOKENS = 16
STREAM_EVENTS = 50
JOINED_TOKENS = 50
DIRECT = "no proxy"
FIRST_RECORDED = {
    ("non-stream", "bare aiohttp"): 0.87,
    ("non-stream", "vllm-router"): 0.42,
    ("stream", "vllm-router"): 1.5,
}
"""Ratios of 2026-11-29, before EngineTime, estimates and reports were wired in."""
KEPT = 0.9
"""Of those, at least."""

PROMPT = [
    {"role": "system", "content": "You are a helpful assistant. Answer briefly."},
    {"role": "user", "content": "What is the difference between a queue and a stack? " * 8},
]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of request."""

    name: str
    body: dict[str, object]
    check: Callable[[bytes], str]


WHOLE = Kind(
    "non-stream",
    {"model": MODEL, "messages": PROMPT, "max_tokens": WHOLE_TOKENS},
    check_whole(WHOLE_TOKENS),
)
# the first event has the role only, each other one a token
STREAM = Kind(
    "stream",
    {"model": MODEL, "messages": PROMPT, "max_tokens": STREAM_EVENTS - 1, "stream": True},
    check_stream(STREAM_EVENTS - 1),
)
# without an aim: joining is what the sidecar does beyond what it is compared with
JOINED = Kind(
    "non-stream, 50 tokens",
    {"model": MODEL, "messages": PROMPT, "max_tokens": JOINED_TOKENS},
    check_whole(JOINED_TOKENS),
)
KINDS = (WHOLE, STREAM, JOINED)


@dataclass(frozen=True, slots=True)
class Cell:
    """A proxy's figures for one kind of request, or why there are none."""

    per_second: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    cpu_ms: float | None = None
    why: str = ""


Cells = dict[tuple[str, str], Cell]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=8.0, help="measured, for each cell")
    parser.add_argument("--only", nargs="*", help="names of proxies; unset: all")


def measure(arguments: argparse.Namespace, console: Console) -> Sequence[Figure]:
    """Runs all cells; the figures, and a table of the cells on the console."""
    if said := rivals.install_rivals():
        console.print(said, style="dim", highlight=False)
    cores = sorted(os.sched_getaffinity(0))
    proxy_core, other_core = cores[0], cores[-1]
    if len(cores) < 2:
        console.print("only one core: proxy, upstream and client share it", style="yellow")
    os.sched_setaffinity(0, {other_core})
    cells: Cells = {}
    names = [DIRECT, *(proxy.name for proxy in rivals.PROXIES)]
    with tempfile.TemporaryDirectory(prefix="tg-bench-") as folder:
        port = rivals.free_port()
        upstream = rivals.Command(
            [sys.executable, str(rivals.HERE / "canned_engine.py"), "--port", str(port)]
        )
        with rivals.started(upstream, other_core, Path(folder) / "log"):
            _wait_for(port)
            for name in names:
                if arguments.only and name not in (*arguments.only, DIRECT):
                    cells |= {(name, kind.name): Cell(why="not asked for") for kind in KINDS}
                    continue
                console.print(f"measuring {name}", style="dim")
                cells |= _cells_of(name, port, proxy_core, arguments.seconds)
            console.print("measuring a quiet rate and long streams", style="dim")
            left_out = [n for n in names if arguments.only and n not in arguments.only]
            paced = proxy_pace.figures(port, proxy_core, arguments.seconds, left_out)
    console.print(cells_table(names, cells))
    return [*figures(cells), *paced]


def _cells_of(name: str, upstream_port: int, core: int, seconds: float) -> Cells:
    if name == DIRECT:
        return {(name, kind.name): _cell(upstream_port, kind, seconds, None) for kind in KINDS}
    proxy = next(proxy for proxy in rivals.PROXIES if proxy.name == name)
    try:
        with rivals.running(proxy, upstream_port, core) as (port, pid):
            return {(name, kind.name): _cell(port, kind, seconds, pid) for kind in KINDS}
    except rivals.MissingError as error:
        return {(name, kind.name): Cell(why=str(error)) for kind in KINDS}


def _cell(port: int, kind: Kind, seconds: float, pid: int | None) -> Cell:
    def processor_seconds() -> float:
        return 0.0 if pid is None else rivals.processor_seconds(pid)

    try:
        outcome: Outcome = uvloop.run(
            load(
                port,
                kind.body,
                rivals.KEY,
                kind.check,
                connections=CONNECTIONS,
                warm_up_seconds=WARM_UP_SECONDS,
                seconds=seconds,
                meter=processor_seconds,
            )
        )
    except OSError as error:
        return Cell(why=f"connection refused: {error}")
    if outcome.wrong:
        return Cell(why=f"{outcome.wrong} wrong answers, such as: {outcome.errors[0]}")
    if not outcome.latencies_ms:
        return Cell(why=f"nothing was answered in {seconds:g} s")
    return Cell(
        outcome.per_second,
        outcome.percentile_ms(50),
        outcome.percentile_ms(99),
        None if pid is None else outcome.metered * 1000 / len(outcome.latencies_ms),
    )


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 10

    async def connect() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()

    while True:
        try:
            return asyncio.run(connect())
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def figures(cells: Mapping[tuple[str, str], Cell]) -> list[Figure]:
    """Ratios with their aims, then the sidecar's own figures and what it adds to a request."""
    ours, bare = rivals.SIDECAR.name, rivals.BARE.name
    router, litellm = rivals.VLLM_ROUTER.name, rivals.LITELLM.name
    made = [
        _ratio(cells, STREAM, router, 1.0),
        _ratio(cells, WHOLE, router, 0.3),
        _ratio(cells, WHOLE, bare, 0.6),
        _ratio(cells, WHOLE, litellm, 10.0),
        _ratio(cells, STREAM, litellm, 10.0),
        _of_first_recorded(cells, WHOLE, bare),
        _of_first_recorded(cells, WHOLE, router),
        _of_first_recorded(cells, STREAM, router),
    ]
    for kind in (WHOLE, STREAM):
        cell = cells[ours, kind.name]
        for name, value, unit in (
            ("rate", cell.per_second, "1/s"),
            ("p50", cell.p50_ms, "ms"),
            ("p99", cell.p99_ms, "ms"),
            ("processor time", cell.cpu_ms, "ms"),
        ):
            made.append(figure(f"{ours} {kind.name} {name}", value, unit, why=cell.why))
    routed = cells[rivals.ROUTER.name, STREAM.name]
    made.append(
        figure(
            f"{rivals.ROUTER.name} events a second and core",
            # the role's event and [DONE] are events too
            None if not routed.cpu_ms else 1000 / routed.cpu_ms * (STREAM_EVENTS + 1),
            "1/s",
            why=routed.why,
        )
    )
    return made


def _ratio(cells: Mapping[tuple[str, str], Cell], kind: Kind, rival: str, least: float) -> Figure:
    ours, theirs = cells[rivals.SIDECAR.name, kind.name], cells[rival, kind.name]
    value, why = None, ""
    if ours.per_second is None:
        why = f"sidecar: {ours.why}"
    elif theirs.per_second is None:
        why = f"{rival}: {theirs.why}"
    else:
        value = ours.per_second / theirs.per_second
        why = f"{ours.per_second:,.0f}/s against {theirs.per_second:,.0f}/s"
        if ours.cpu_ms and theirs.cpu_ms:
            why += (
                f"; processor time {ours.cpu_ms:.2f} against {theirs.cpu_ms:.2f} ms a request: "
                f"{theirs.cpu_ms / ours.cpu_ms:.2f} were the proxies' core the only bound"
            )
    return figure(f"{kind.name}, sidecar over {rival}", value, "ratio", Aim(">=", least), why)


def _of_first_recorded(cells: Mapping[tuple[str, str], Cell], kind: Kind, rival: str) -> Figure:
    now, first = _ratio(cells, kind, rival, 0.0), FIRST_RECORDED[kind.name, rival]
    value = None if now.value is None else now.value / first
    name = f"{now.name}, of the first record ({first:g})"
    return figure(name, value, "ratio", Aim(">=", KEPT), now.why)


def cells_table(names: Sequence[str], cells: Mapping[tuple[str, str], Cell]) -> Table:
    """A row for each proxy and kind."""
    table = Table(title=f"{CONNECTIONS} connections, one core a proxy", title_justify="left")
    for header in ("kind", "proxy"):
        table.add_column(header)
    for header in ("1/s", "p50 ms", "p99 ms", "cpu ms"):
        table.add_column(header, justify="right")
    table.add_column("why not")
    for kind in KINDS:
        for name in names:
            cell = cells[name, kind.name]
            table.add_row(
                kind.name,
                name,
                "-" if cell.per_second is None else f"{cell.per_second:,.0f}",
                *(
                    "-" if value is None else f"{value:.2f}"
                    for value in (cell.p50_ms, cell.p99_ms, cell.cpu_ms)
                ),
                cell.why,
            )
        table.add_section()
    return table


if __name__ == "__main__":
    sys.exit(benchmark("proxy", __doc__ or "", measure, options))
