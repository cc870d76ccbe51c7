"""What is said of an engine that is not there, or is another one: once, until it changes."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from tidegate_sidecar.engine_watch import EngineWatch


class Watch(EngineWatch):
    """Of an engine whose answers are set."""

    def __init__(self, wanted: str) -> None:
        self.status = 0
        self.models: list[str] = []
        dispatcher = SimpleNamespace(
            engine_ready=False,
            in_flight=SimpleNamespace(engine_figures=lambda *_: None),
        )

        def set_engine_ready(ready: bool) -> None:
            dispatcher.engine_ready = ready

        dispatcher.set_engine_ready = set_engine_ready
        self.runtime: Any = SimpleNamespace(
            dispatcher=dispatcher,
            engine_models=[],
            engine_tells_usage=True,
            in_force=SimpleNamespace(model=SimpleNamespace(name=wanted)),
        )
        super().__init__(self.runtime)

    async def get(self, path: str) -> tuple[int, bytes]:
        if self.status != 200:
            return self.status, b""
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
