"""What `scripts/bench engine` has before its engine: production's scheduler, told of steps."""

from __future__ import annotations

import importlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.fake_engine import socket_folder

from tidegate.scheduling.contracts import STEP_STATISTICS_VERSION

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
STEP_SECONDS = 0.01


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("engine_front")


@pytest.fixture
def path() -> Iterator[str]:
    with socket_folder() as folder:
        yield str(folder / "steps.sock")


def test_each_step_that_the_plug_in_tells_is_charged_to_who_was_in_it(
    front: Any, path: str
) -> None:
    policy = importlib.import_module("engine_workloads").policy()
    ours = front.Front(policy)
    left = {f"{tier}-{number}": 4 for number in range(4) for tier in ("t0", "t3")}
    for name in left:
        ours.submit(name, SimpleNamespace(tier=name[:2], prompt_tokens=100, output_tokens=4), 0.0)
    running: dict[str, int] = {}
    started: set[str] = set()
    step = 0
    plugin = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with plugin, front.listening(path) as receiver:
        while left:
            now = step * STEP_SECONDS
            running |= {name: number for name, number, _ in ours.dispatch(now)}
            assert running, "an idle engine takes one"
            step += 1
            note = {
                "version": STEP_STATISTICS_VERSION, "step": step, "planned": True,
                "decodes": [running[name] for name in running if name in started],
                "prefills": [
                    {"sequence": number, "tokens": 100}
                    for name, number in running.items()
                    if name not in started
                ],
                "tiers": [{"name": "t3", "held_blocks": 1, "room_blocks": 9}],
            }  # fmt: skip
            plugin.sendto(json.dumps(note).encode(), path)
            ours.stepped(front.steps_told(receiver), STEP_SECONDS)
            for name in list(running):
                started.add(name)
                ours.progressed(name, 1, now)
                left[name] -= 1
                if not left[name]:
                    del left[name], running[name]
                    ours.ended(name, 100, 4, now)
    tiers = ours._scheduler.tier_snapshots()
    charged = {tier.name: tier.engine_ms_total for tier in tiers}
    assert min(charged["t0"], charged["t3"]) > 0
    assert sum(charged.values()) == pytest.approx(1e3 * step * STEP_SECONDS)
    assert ours._entrance.gates.in_flight == 0
