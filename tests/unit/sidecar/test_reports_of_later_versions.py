"""What a plug-in or a sidecar of a later version tells besides is ignored by those who hear it."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

from tidegate_sidecar.router.pods import RoutedPod
from tidegate_sidecar.step_statistics import StepSocket

from tidegate.scheduling.contracts import ServingPod, StepStatistics

EXAMPLE = Path(__file__).resolve().parents[2] / "contracts" / "step_statistics.json"


async def test_a_step_told_by_a_later_plug_in_is_taken(tmp_path: Path) -> None:
    taken: asyncio.Queue[StepStatistics] = asyncio.Queue()
    steps, loop = StepSocket(tmp_path / "steps", taken.put_nowait), asyncio.get_running_loop()
    steps.open(loop)
    step = json.loads(EXAMPLE.read_text())
    step["of_a_later_version"] = step["prefills"][0]["of_a_later_version"] = [1]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as plug_in:
        plug_in.sendto(json.dumps(step).encode(), str(tmp_path / "steps"))
    async with asyncio.timeout(5):
        told = await taken.get()
    steps.close(loop)
    assert (told.step, steps.unreadable) == (step["step"], 0)


async def test_a_load_told_by_a_later_sidecar_is_taken() -> None:
    pod = RoutedPod(ServingPod("a", "http://127.0.0.1:1", "http://127.0.0.1:2"), 1.0)
    load = {"ready": True, "queued": 3, "running": 2, "seats": 8}
    pod.says({**load, "of_a_later_version": [1]})
    assert (pod.queued, pod.seats, pod.in_hand) == (3, 8, 5)
