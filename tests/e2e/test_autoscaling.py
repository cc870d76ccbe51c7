"""A pool whose number of pods is the operator's: running pods come with a queue and go with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.tenant_client import Sent, TenantClient

from testbed.e2e_cluster import Scene, condition

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

NAMESPACE = "e2e-autoscaling"
SEATS, SENDERS = 2, 20
WAITING = SENDERS // 2
"""That the status shows; all wait but those in the seats, and who is between two requests."""
PROMISE = {"objectives": [{"metric": "EndToEnd", "target": "2s", "ratio": "99"}]}
"""Broken by a wait, and no reason for the throttle, which judges by the first token, to refuse."""
AT_ONCE = {"window": "0s", "cooldown": "0s"}
SOON = {"window": "1m", "cooldown": "0s"}
"""As soon as the API lets pods go."""


async def test_a_queue_brings_a_pod_and_calm_takes_it_away_once(
    make_scene: Callable[..., Scene],
) -> None:
    """By QueueWait alone. The status follows: who waits, each step, and that nobody waits."""
    pace = {"scaleUp": AT_ONCE, "scaleDown": SOON}
    scene = make_scene(
        NAMESPACE,
        tiers={"t": {"slo": PROMISE}},
        tenants={"a": {"tier": "t"}},
        engine_args=[f"--max-num-seqs={SEATS}"],
        engine_env={"TIDEGATE_FAKE_IGNORE_EOS": "1"},
        pool_spec={
            "autoscaling": {"minPerGroup": 1, "maxPerGroup": 2, "signals": ["QueueWait"], **pace}
        },
    )
    before = await asyncio.to_thread(scene.container_restarts)
    senders = Senders(scene)
    burst = [senders.start(50, 200) for _ in range(SENDERS)]
    await senders.until("the status shows who waits", lambda: waiting(scene) >= WAITING, 40)
    described = scene.cluster.kubectl("describe", "spool", "pool", "-n", NAMESPACE)
    assert "Queued:" in described
    await senders.until("a second pod serves", lambda: serving(scene) == 2, 100)
    await senders.until("that is told", lambda: active(scene, "2 pods are wanted"), 50)
    await senders.end(burst)

    light = [senders.start(8, 8, pause_seconds=0.1, reconnects=i > 0) for i in range(3)]
    await senders.until("nobody waits", lambda: waiting(scene) == 0, 100)
    await senders.until("the second pod has its part", lambda: served_by(scene, "pool-1"), 50)
    await senders.until("one pod is left", lambda: len(scene.pods()) == 1, 600)
    await senders.until("that is told", lambda: active(scene, "1 pods are wanted"), 50)
    await senders.end(light)

    assert [sent for sent in senders.sent if not sent.complete] == []
    pool = await asyncio.to_thread(scene.pool_object)
    assert pool["spec"]["replicas"] == 1
    scaling = pool["status"]["scaling"]
    assert scaling["desired"] == 1
    down, up = scaling["history"]
    assert step(up) == ("main", 1, 2, "QueueWait")
    assert f"tier {NAMESPACE}-t waits" in up["message"]
    assert step(down) == ("main", 2, 1, "Calm")
    assert down["message"] == "calm for 60 s, and 1 would have held"
    assert scene.container_restarts() == before


class Senders:
    """Tasks that send one request after the other, and what became of each request."""

    def __init__(self, scene: Scene) -> None:
        self.sent: list[Sent] = []
        self._scene = scene
        self._endpoint = scene.endpoint
        self._ended: set[asyncio.Task[None]] = set()

    def start(
        self, *sizes: int, pause_seconds: float = 0.0, reconnects: bool = False
    ) -> asyncio.Task[None]:
        """``sizes`` in tokens of prompt and output; ``reconnects``: each request over a connection
        of its own, and so to whichever pod."""
        return asyncio.create_task(self._send(*sizes, pause_seconds, reconnects))

    async def _send(
        self, prompt_tokens: int, output_tokens: int, pause_seconds: float, reconnects: bool
    ) -> None:
        task = asyncio.current_task()
        while task not in self._ended:
            key = self._scene.key("a")
            async with TenantClient(self._endpoint, key, self._scene.model) as client:
                while task not in self._ended:
                    stream = len(self.sent) % 2 == 0
                    sent = await client.complete(prompt_tokens, output_tokens, stream=stream)
                    self.sent.append(sent)
                    await asyncio.sleep(pause_seconds)
                    if reconnects:
                        break

    async def end(self, tasks: list[asyncio.Task[None]]) -> None:
        """Each once its request is answered."""
        self._ended |= set(tasks)
        await asyncio.gather(*tasks)

    async def until(self, what: str, check: Callable[[], Any], seconds: float) -> None:
        """Go on sending until it is so."""
        await asyncio.to_thread(self._scene.cluster.until, what, check, seconds)


def waiting(scene: Scene) -> int:
    """As the pool's status has it."""
    tiers = scene.pool_object()["status"].get("tiers", [])
    return tiers[0].get("queued", 0) if tiers else 0


def serving(scene: Scene) -> int:
    return int(scene.pool_object()["status"].get("readyReplicas", 0))


def active(scene: Scene, text: str) -> bool:
    found = condition(scene.pool_object(), "Autoscaling")
    return found.get("reason") == "ScalingActive" and text in found["message"]


def served_by(scene: Scene, pod: str) -> bool:
    return bool(scene.cluster.engine_log(NAMESPACE, pod))


def step(told: dict[str, Any]) -> tuple[str, int, int, str]:
    return told["group"], told["fromReplicas"], told["toReplicas"], told["reason"]
