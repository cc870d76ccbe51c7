"""Prompts that share nothing have no block in common, or an engine's prefix cache would hit."""

from __future__ import annotations

from tidegate.simulator.simulation.request import SimRequest, block_hashes
from tidegate.workload.clients.client import OpenClient, at_times, constant
from tidegate.workload.requests import PlannedRequest, SharedPrefix


def test_no_two_requests_have_a_block_in_common() -> None:
    keys = set()
    for name in ("a", "b"):
        client = OpenClient(name, "t0", (name,), at_times(), constant(64), constant(8), seed=1)
        for index in range(200):
            planned = PlannedRequest(name, index, 0.0, 64, 8)
            request = SimRequest(f"{name}/{index}", client, planned, "t0", 0.0, 8)
            engine = request.to_engine(block_size=16, priority=0, now=0.0, most_drafted_tokens=0)
            keys |= {engine.block_hash(block) for block in range(4)}
    assert None not in keys
    assert len(keys) == 2 * 200 * 4


def test_equal_prompts_have_equal_hashes_up_to_where_they_differ() -> None:
    one = block_hashes(SharedPrefix((1, 2, 3), 40), 120, 16, 0)
    other = block_hashes(SharedPrefix((1, 2, 9), 40), 120, 16, 0)
    assert one[:5] == other[:5]  # 80 shared tokens are 5 whole blocks of 16
    assert not set(one[5:]) & set(other[5:])
    assert not set(one) & set(block_hashes(SharedPrefix((1, 2, 3), 40), 120, 16, 1))
    assert len(block_hashes(SharedPrefix((1, 2, 3), 40), 100, 16, 0)) == 6
    assert block_hashes(None, 100, 16, 0) == []
