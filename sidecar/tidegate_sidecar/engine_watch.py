"""Is the engine there, what does it serve, how full is it.

``GET /health`` decides readiness (an engine without it, any other OpenAI-compatible server, is
judged by ``GET /v1/models``). One refused connection or 503 is enough to be not ready; silence
needs three looks, since an engine's server may be busy for a second and is not dead.

An engine that does not answer, or serves none of the pool's model, or whose metrics do not tell how
full it is, is said in the log once, until that changes.
"""

from __future__ import annotations

import asyncio
import logging

import orjson

from tidegate.scheduling.contracts import Task
from tidegate_sidecar.engine import EngineUnreachable
from tidegate_sidecar.engine_connection import EngineBroken
from tidegate_sidecar.metrics_text import EngineFigures, read_engine_metrics
from tidegate_sidecar.runtime import Runtime

log = logging.getLogger("tidegate.sidecar")

LOOK_SECONDS = 2.0
_MISSES_ALLOWED = 3
_MAX_TEXT_BYTES = 16 << 20
_NO_METRICS = {0: "no connection for GET /metrics", -1: "GET /metrics has no answer in time"}


class EngineWatch:
    """Keeps the runtime's picture of its engine true."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._misses = 0
        self._absence_told = False
        self._wrong_model: tuple[str, ...] = ()
        """The pool's, and what the engine serves in its place, as was said."""
        self._untold_told = False

    async def get(self, path: str) -> tuple[int, bytes]:
        """(status, body); status 0: no connection, -1: connected, but no answer in time."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                exchange = await self._runtime.engine.get(path)
                try:
                    return exchange.status, await exchange.read_all(_MAX_TEXT_BYTES)
                finally:
                    exchange.close()
        except EngineUnreachable:
            return 0, b""
        except (EngineBroken, TimeoutError):
            return -1, b""

    async def healthy(self) -> int:
        """The status of the engine's health, as :meth:`get` has it; 200: healthy."""
        status, _ = await self.get("/health")
        if status == 404:
            status, _ = await self.get("/v1/models")
        return status

    async def look(self) -> None:
        """One look."""
        runtime = self._runtime
        status = await self.healthy()
        was_ready = runtime.dispatcher.engine_ready
        if status != 200:
            self._misses += 1
            if status != -1 or self._misses >= _MISSES_ALLOWED:
                runtime.dispatcher.set_engine_ready(False)
                self._take_figures(EngineFigures(), None)
                if was_ready or not self._absence_told:
                    self._absence_told = True
                    why = {0: "no connection", -1: "no answer"}.get(status, f"status {status}")
                    log.warning("the engine is not ready (%s)", why)
            return
        self._misses = 0
        if not was_ready or not runtime.engine_models:
            await self._read_models()
        if not was_ready:
            runtime.engine_tells_usage = True  # it may be another engine
        await self._read_figures()
        if not was_ready:
            runtime.dispatcher.set_engine_ready(True)
            log.info("the engine is ready")
        self._tell_wrong_model()

    def _tell_wrong_model(self) -> None:
        in_force = self._runtime.in_force
        served = [str(model.get("id")) for model in self._runtime.engine_models]
        if in_force is None or not served:
            return
        wanted = in_force.model.name
        wrong = () if wanted in served else (wanted, *served)
        if wrong and wrong != self._wrong_model:
            log.warning(
                "the engine serves %s, not the pool's model %s: it will refuse every request",
                ", ".join(served),
                wanted,
            )
        self._wrong_model = wrong

    async def _read_models(self) -> None:
        status, body = await self.get("/v1/models")
        if status != 200:
            return
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            return
        models = answer.get("data") if isinstance(answer, dict) else None
        if isinstance(models, list):
            self._runtime.engine_models = [m for m in models if isinstance(m, dict)]

    async def _read_figures(self) -> None:
        runtime = self._runtime
        if runtime.in_force is None:
            return
        loop, model = runtime.dispatcher.loop, runtime.in_force.model
        asked_at = loop.time()
        status, body = await self.get("/metrics")
        text = body.decode("utf-8", "replace") if status == 200 else ""
        figures = read_engine_metrics(text, model.name)
        untold = None
        if figures.untold and model.task is not Task.EMBED:  # whose gate asks for none of it
            untold = _NO_METRICS.get(status, f"GET /metrics answers {status}")
            if status == 200:
                untold = f"no {', '.join(figures.untold)} of model {model.name}"
        self._take_figures(figures, untold)
        runtime.dispatcher.in_flight.engine_figures(figures, asked_at, loop.time())

    def _take_figures(self, figures: EngineFigures, untold: str | None) -> None:
        runtime = self._runtime
        now = runtime.dispatcher.loop.time()
        runtime.engine_figures = figures
        runtime.engine_untold.reading(untold, now)
        lasting = runtime.engine_untold.lasting(now)
        if lasting is not None and not self._untold_told:
            log.warning("the engine does not say how full it is: %s", lasting)
        self._untold_told = lasting is not None

    async def follow(self) -> None:
        """Look again and again."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("looking at the engine failed")
            self._runtime.engine.sweep(loop.time())
            await asyncio.sleep(self._runtime.settings.engine_poll_seconds)
