"""The mixed node's runs in one table: latency by tier, throughput, shares, cache, preemptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from simulated import Results, RunSummary


def print_table(done: Results, seeds: Sequence[int], console: Console) -> None:
    """A row for each policy, mean over seeds; of T0's slowest 2% what they waited for their first
    step, and what that step and those after it took."""
    table = Table(title="mixed node, mean over seeds; seconds", title_justify="left")
    columns = (
        "policy", "in flight", "T0 TTFT p50", "p99", "worst p99", "slowest 2%", "within 0.8 s %",
        "ms/token", "response p99", "T1 p99", "T2 p99", "T3 p99", "req/s", "tokens/s", "T3 share %",
        "hit %", "preempted", "recomputed", "x real time",
    )  # fmt: skip
    for name in columns:
        table.add_column(name, justify="left" if name == "policy" else "right")
    for key in dict.fromkeys(key for key, _ in done):
        rows = [done[key, seed] for seed in seeds if (key, seed) in done]

        def mean(value: Callable[[RunSummary], float], rows: list[RunSummary] = rows) -> float:
            return sum(map(value, rows)) / len(rows)

        def p99(tier: str, rows: list[RunSummary] = rows) -> str:
            values = [row.tiers[tier].ttft_p99 for row in rows if tier in row.tiers]
            return f"{sum(values) / len(values):.3g}" if values else "-"

        shares = [row.tiers["t3"].computed_share for row in rows if "t3" in row.tiers]
        table.add_row(
            key,
            f"{mean(lambda row: row.in_flight):.0f}",
            f"{mean(lambda row: row.tiers['t0'].ttft_p50):.3f}",
            p99("t0"),
            f"{max(row.tiers['t0'].ttft_p99 for row in rows):.3f}",
            f"{mean(lambda row: row.tiers['t0'].slowest_waited):.3f}"
            f" + {mean(lambda row: row.tiers['t0'].slowest_computed):.3f}",
            f"{100 * mean(lambda row: row.tiers['t0'].within_slo):.1f}",
            f"{1000 * mean(lambda row: row.tiers['t0'].seconds_per_token):.0f}",
            f"{mean(lambda row: row.tiers['t0'].response_p99):.1f}",
            p99("t1"),
            p99("t2"),
            p99("t3"),
            f"{mean(lambda row: row.completed_per_second):.2f}",
            f"{mean(lambda row: row.tokens_per_second):,.0f}",
            f"{100 * sum(shares) / len(shares):.0f}" if shares else "-",
            f"{100 * mean(lambda row: row.hit_ratio):.0f}",
            f"{mean(lambda row: row.preemptions):.0f}",
            f"{mean(lambda row: row.recomputed_tokens):,.0f}",
            f"{mean(lambda row: row.simulated_seconds / row.processor_seconds):.0f}",
        )
    console.print(table)
