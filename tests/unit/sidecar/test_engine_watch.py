"""What is said of an engine that is not there, or is another one: once, until it changes."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from tidegate_sidecar.engine_watch import EngineWatch
from tidegate_sidecar.metrics_text import UNTOLD_SECONDS, EngineFigures, Untold

from tidegate.scheduling.contracts import Task

WELL = """
vllm:num_requests_running 5
vllm:num_requests_waiting 1
vllm:kv_cache_usage_perc 0.5
"""


class Watch(EngineWatch):
    """Of an engine whose answers are set."""

    def __init__(self, wanted: str) -> None:
        self.status = 0
        self.models: list[str] = []
        self.metrics: tuple[int, str] = 200, WELL
        self.now = 0.0
        self.gates: list[EngineFigures] = []
        """What they were told."""
        dispatcher = SimpleNamespace(
            engine_ready=False,
            in_flight=SimpleNamespace(engine_figures=lambda told, *_: self.gates.append(told)),
            loop=SimpleNamespace(time=lambda: self.now),
        )

        def set_engine_ready(ready: bool) -> None:
            dispatcher.engine_ready = ready

        dispatcher.set_engine_ready = set_engine_ready
        self.runtime: Any = SimpleNamespace(
            dispatcher=dispatcher,
            engine_models=[],
            engine_tells_usage=True,
            engine_untold=Untold(),
            in_force=SimpleNamespace(model=SimpleNamespace(name=wanted, task=Task.GENERATE)),
        )
        super().__init__(self.runtime)

    async def get(self, path: str) -> tuple[int, bytes]:
        if self.status != 200:
            return self.status, b""
        if path == "/metrics":
            return self.metrics[0], self.metrics[1].encode()
        return 200, orjson.dumps({"data": [{"id": name} for name in self.models]})


async def said(
    watch: Watch, caplog: pytest.LogCaptureFixture, *, looks: int = 5, least: int = logging.WARNING
) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.INFO, "tidegate.sidecar"):
        for _ in range(looks):
            await watch.look()
    return [record.getMessage() for record in caplog.records if record.levelno >= least]


@pytest.mark.parametrize(
    ("status", "why"), [(0, "no connection"), (-1, "no answer"), (503, "status 503")]
)
async def test_an_engine_that_never_answers_is_said_once(
    caplog: pytest.LogCaptureFixture, status: int, why: str
) -> None:
    watch = Watch("m")
    watch.status = status
    assert await said(watch, caplog) == [f"the engine is not ready ({why})"]
    assert await said(watch, caplog) == []


async def test_each_loss_of_the_engine_is_said(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch("m")
    watch.models = ["m"]
    for _ in range(2):
        watch.status = 200
        assert await said(watch, caplog, least=logging.INFO) == ["the engine is ready"]
        watch.status = 0
        assert await said(watch, caplog) == ["the engine is not ready (no connection)"]


async def test_an_engine_of_another_model_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch("wanted")
    watch.status, watch.models = 200, ["other", "third"]
    line = (
        "the engine serves other, third, not the pool's model wanted: it will refuse every request"
    )
    assert await said(watch, caplog) == [line]
    watch.runtime.in_force.model.name = "other"  # another policy
    assert await said(watch, caplog) == []
    watch.runtime.in_force.model.name = "wanted"
    assert await said(watch, caplog) == [line]


@pytest.mark.parametrize(
    ("metrics", "why"),
    [
        ((404, ""), "GET /metrics answers 404"),
        ((-1, ""), "GET /metrics has no answer in time"),
        ((200, "vllm:num_requests_running 5\nvllm:num_requests_waiting NaN"), "no "
            "vllm:num_requests_waiting, vllm:kv_cache_usage_perc of model m"),
    ],
)  # fmt: skip
async def test_r3_metrics_that_cease_are_unknown_at_once_and_said_after_a_minute(
    caplog: pytest.LogCaptureFixture, metrics: tuple[int, str], why: str
) -> None:
    watch = Watch("m")
    watch.status, watch.models = 200, ["m"]
    runtime = watch.runtime
    await watch.look()
    assert watch.gates == [EngineFigures(running=5, waiting=1, kv_used_ratio=0.5)]
    watch.metrics = metrics
    watch.now = 1.0
    assert await said(watch, caplog) == []
    assert watch.gates[-1] == runtime.engine_figures  # a reading is never told twice
    assert (runtime.engine_figures.waiting, runtime.engine_figures.kv_used_ratio) == (None, None)
    watch.now += UNTOLD_SECONDS
    assert await said(watch, caplog) == [f"the engine does not say how full it is: {why}"]
    assert runtime.engine_untold.lasting(watch.now) == why
    watch.metrics = 200, WELL
    assert await said(watch, caplog) == []
    assert runtime.engine_untold.lasting(watch.now) is None


async def test_r3_nobody_asks_how_full_an_embedding_or_an_absent_engine_is() -> None:
    watch = Watch("m")
    watch.status, watch.models, watch.metrics = 200, ["m"], (404, "")
    watch.runtime.in_force.model.task = Task.EMBED
    await watch.look()
    assert watch.runtime.engine_untold.what is None
    watch.runtime.in_force.model.task = Task.GENERATE
    await watch.look()
    assert watch.runtime.engine_untold.what is not None
    watch.status = 0
    await watch.look()
    assert watch.runtime.engine_untold.what is None
