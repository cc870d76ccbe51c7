"""The tables of `tidegate top`, and the command over a cluster that comes and goes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import typer
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

from tidegate.cli import top
from tidegate.cli.errors import CommandError
from tidegate.cli.top_tables import pool_remarks, pool_table, tenant_table, tier_table
from tidegate.load.tables import PLAIN_WIDTH, output_console

Json = dict[str, Any]
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def obj(kind: str, name: str, **fields: Any) -> Json:
    namespace, _, short = name.partition("/")
    return {"kind": kind, "metadata": {"namespace": namespace, "name": short}} | fields


def condition(kind: str, status: str, reason: str = "Why", message: str = "because") -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message}


WELL = obj(
    "ServingPool",
    "a/chat",
    status={
        "replicas": 2,
        "readyReplicas": 2,
        "queued": 7,
        "running": 12,
        "conditions": [
            condition("Accepted", "True"),
            condition("Progressing", "False"),
            condition("Ready", "True"),
        ],
        "tiers": [
            {"name": "paid", "queued": 0, "running": 9, "sharePercent": 80,
             "busyPercent": 41, "pricePer1000Calls": "0.42",
             "objectives": [{"metric": "EndToEnd", "requests": 9, "keptPercent": 100},
                            {"metric": "TimeToFirstToken", "requests": 9, "keptPercent": 97}],
             "ttft": {"p50Ms": 120, "p99Ms": 900}, "queueWait": {"p99Ms": 5}},
            {"name": "free", "queued": 7, "running": 3, "sharePercent": 20, "oldestWaitMs": 312000,
             "queueWait": {"p99Ms": 14000}, "refused": {"queue_full": 12, "throttled": 40}},
        ],
        "tenants": [{"name": "a/noisy", "queued": 7, "running": 3, "sharePercent": 20,
                     "oldestWaitMs": 312000, "ttft": {"p99Ms": 9000}}],
        "refusedTenants": [
            {"name": "a/noisy", "tier": "free", "refused": 42, "limit": "rpm",
             "why": "40 rate_limited 2 throttled"}
        ],
    },
)  # fmt: skip
ILL = obj(
    "ServingPool",
    "b/code",
    status={
        "replicas": 1,
        "readyReplicas": 0,
        "conditions": [
            condition("Ready", "False", "PodsFailing", "pod code-0: no image"),
            condition("GPUMismatch", "True", "GPUsIdle", "1 idles"),
        ],
    },
)
TENANTS = [
    obj("Tenant", "a/quiet", spec={"tierRef": {"name": "paid"}},
        status={"queued": 0, "running": 0, "ttft": {"p99Ms": 640},
                "conditions": [condition("Ready", "True")]}),
    obj("Tenant", "a/noisy", spec={"tierRef": {"name": "free"}},
        status={"queued": 99, "running": 0, "refused": {"throttled": 40},
                "lastRefusal": {"reason": "throttled", "time": "2026-11-30T11:55:00Z"},
                "conditions": [condition("Ready", "Unknown", "Held")]}),
    obj("Tenant", "b/new", spec={"tierRef": {"name": "paid"}}),
]  # fmt: skip


def rows(table: Table) -> list[list[str]]:
    """The cells as plain text."""
    columns = [[Console().render_str(str(cell)).plain for cell in c.cells] for c in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def headings(table: Table) -> list[str]:
    return [" ".join(str(column.header).split()) for column in table.columns]


def test_the_pool_that_is_not_well_comes_first_and_says_why() -> None:
    assert rows(pool_table([WELL, ILL], 80)) == [
        ["b/code", "False", "0/1", "-", "-"],
        ["a/chat", "True", "2/2", "7", "12"],
    ]
    assert pool_remarks([WELL, ILL]) == [
        "b/code: Ready PodsFailing: pod code-0: no image; GPUMismatch: 1 idles"
    ]
    refused, absent = "spec.tiers: no such tier", "secret: there is no Secret x"
    conditions = [
        condition("Accepted", "False", "Invalid", refused),
        condition("ResolvedRefs", "False", "SecretNotFound", absent),
        condition("Available", "False", "RouterNotReady", "0 of 2 router pods serve"),
        condition("Routed", "False", "RouterNotReady", "0 of 2 router pods serve"),
        condition("Ready", "False", "Invalid", f"{refused}; {absent}"),
    ]
    assert pool_remarks([ILL | {"status": {"conditions": conditions}}]) == [
        "b/code: Available RouterNotReady: 0 of 2 router pods serve; "
        f"Ready Invalid: {refused}; {absent}"
    ]


def test_the_tier_that_waits_longest_comes_first() -> None:
    table = tier_table([WELL, ILL], 200)
    assert headings(table) == [
        "pool", "tier", "queued", "running", "oldest wait", "share", "busy", "kept", "TTFT p50",
        "TTFT p99", "queue p99", "1,000 calls", "refused so far",
    ]  # fmt: skip
    free, paid = rows(table)
    assert free == [
        "a/chat", "free", "7", "3", "312 s", "20%", "-", "-", "-", "-", "14.0 s", "-",
        "40 throttled 12 queue_full",
    ]  # fmt: skip
    assert paid == [
        "a/chat", "paid", "0", "9", "none", "80%", "41%", "97%", "120 ms", "900 ms", "5 ms", "0.42",
        "none",
    ]  # fmt: skip
    assert [row[0] for row in rows(tier_table([WELL], 200, "paid"))] == ["paid"]


def test_tiers_with_nothing_to_do_are_counted_and_not_shown() -> None:
    idle = {"name": "other", "queued": 0, "running": 0, "busyPercent": 0}
    pool = WELL | {"status": WELL["status"] | {"tiers": [*WELL["status"]["tiers"], idle]}}
    table = tier_table([pool], 200)
    assert [row[0] for row in rows(table)] == ["free", "paid"]
    assert table.caption == "1 more had nothing to do"
    assert tier_table([WELL], 200).caption is None


def test_a_tenants_load_and_refusals_are_the_pools_newer_ones() -> None:
    noisy, quiet, new = rows(tenant_table(TENANTS, [WELL], NOW, 200))
    assert noisy == [
        "a/noisy", "free", "7", "3", "312 s", "20%", "9.0 s",
        "40 rate_limited 2 throttled (limit rpm)", "now", "Held",
    ]  # fmt: skip
    assert quiet == ["a/quiet", "paid", "0", "0", "none", "-", "-", "none", "none", "yes"]
    assert new == ["b/new", "paid", "-", "-", "-", "-", "-", "-", "-", "-"]
    alone = tenant_table(TENANTS, [], NOW, 200, "free")
    assert rows(alone) == [["a/noisy", "free", "99", "0", "none", "throttled 5m ago", "Held"]]


def test_no_share_and_no_first_token_of_another_minute_stands_beside_the_pools() -> None:
    old = {"queued": 1, "sharePercent": 67, "ttft": {"p99Ms": 20_000}}
    pool = WELL | {"status": WELL["status"] | {"tenants": [{"name": "a/old", "queued": 2}]}}
    tenant = obj("Tenant", "a/old", spec={"tierRef": {"name": "free"}}, status=old)
    table = tenant_table([tenant], [pool], NOW, 200)
    assert rows(table)[0][:3] == ["a/old", "free", "2"]
    assert not {"share", "TTFT p99"} & set(headings(table))  # nothing is known of any


def test_a_table_of_nobody_says_so() -> None:
    idle = WELL | {"status": {"tiers": [{"name": "free", "queued": 0}]}}
    table = tier_table([idle], 200)
    assert (headings(table), rows(table)) == (["tier"], [["none active"]])
    assert table.caption == "1 had nothing to do"
    assert rows(tenant_table(TENANTS, [WELL], NOW, 200, "gone")) == [["none active"]]


@pytest.mark.parametrize("width", [160, 100, 80, 60, 45])
def test_what_is_too_wide_is_said_shorter_and_never_cut(width: int) -> None:
    long = {"throttled": 731, "queue_full": 44, "queue_wait_exceeded": 12}
    tiers = [
        tier | {"name": f"panels-{tier['name']}", "refused": long, "ttft": {"p99Ms": 2100}}
        for tier in WELL["status"]["tiers"]
    ]
    pool = WELL | {"status": WELL["status"] | {"tiers": tiers}}
    tables = [tier_table([pool], width), tenant_table(TENANTS, [pool], NOW, width)]
    kept = [["tier", "queued", "running", "kept", "TTFT p99"], ["tenant", "tier", "TTFT p99"]]
    console = Console(width=width)
    for table, wanted in zip(tables, kept, strict=True):
        assert set(wanted) <= set(headings(table))
        assert "pool" not in headings(table)
        with console.capture() as capture:
            console.print(table)
        text = capture.get()
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width
    refused = {160: "731 throttled 44 queue_full 12 queue_wait_exceeded", 100: "731 throttled +56"}
    if width in refused:
        assert rows(tables[0])[0][-1] == refused[width]


def test_the_address_in_a_remark_is_whole() -> None:
    address = "https://example.com/tidegate/docs/runbooks/error-budget-burn.md"
    message = (
        f"TimeToFirstToken: 31 percent; `tidegate explain NAMESPACE/TENANT` says why; {address}"
    )
    missed = condition("SLOMet", "False", "ObjectiveMissed", message)
    pool = WELL | {"status": {"conditions": [condition("Ready", "True"), missed]}}
    console = Console(width=70)
    with console.capture() as capture:
        console.print(top._screen([pool], None, None, 70))
    assert address in capture.get().splitlines()


def test_a_pipe_is_as_wide_as_columns_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for said, width in (("100", 100), ("0", PLAIN_WIDTH), ("wide", PLAIN_WIDTH)):
        monkeypatch.setenv("COLUMNS", said)
        assert output_console().width == width


class Cluster:
    """Stands in for a cluster that is away at first."""

    def __init__(self, *args: object) -> None:
        self.looks = 0

    def read(self, *resources: str) -> list[Json]:
        self.looks += 1
        if self.looks == 1:
            raise CommandError("kubectl get: connection refused")
        return [WELL, ILL, *TENANTS]


def test_a_look_that_fails_is_told_and_the_next_is_made() -> None:
    cluster: Any = Cluster()
    screens = []
    for _ in range(2):
        console = Console(width=200)
        with console.capture() as capture:
            console.print(top._look(cluster, None, None, console.width))
        screens.append(capture.get())
    assert "kubectl get: connection refused" in screens[0]
    assert "2 pools, 3 tenants" in screens[1]
    assert "up to 5 min ago" in screens[1]


def test_once_prints_whole_rows_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    monkeypatch.setattr(top, "ClusterObjects", lambda *_: cluster)
    app = typer.Typer()
    app.command()(top.top)
    failed = CliRunner().invoke(app, ["--once"])
    assert isinstance(failed.exception, CommandError)
    result = CliRunner().invoke(app, ["--once", "--namespace", "a"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert any(
        "a/noisy" in line and "throttled 40" not in line and "Held" in line for line in lines
    )
    assert "1 pool, 2 tenants" in result.stdout
    assert "b/code" not in result.stdout
    nothing = CliRunner().invoke(app, ["--once", "--namespace", "gone"])
    assert "There is no ServingPool and no Tenant in namespace gone." in nothing.stdout
