"""10,000 queued requests of one tenant against 5 of another, in one tier (source 002)."""

from __future__ import annotations

from itertools import repeat

from tidegate.workload.clients.client import OpenClient, Workload, log_normal

MANY, FEW = "backlog/many", "backlog/few"
FEW_AT_SECONDS = 5.0


def ten_thousand_against_five(seed: int, many: int = 10_000, few: int = 5) -> Workload:
    """``many`` at once at time 0, ``few`` at once a little later; equal lengths."""
    prompt, output = log_normal(400, 0.5, 2_000), log_normal(150, 0.5, 1_000)

    def client(name: str, count: int, at: float) -> OpenClient:
        return OpenClient(
            name, "t1", (name,), lambda random: repeat(at, count), prompt, output, seed
        )

    return Workload(
        name=f"{many} against {few}",
        tiers=("t1",),
        clients=(client(MANY, many, 0.0), client(FEW, few, FEW_AT_SECONDS)),
    )
