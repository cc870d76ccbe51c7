"""Starting and stopping a fake engine.

Shutdown is vLLM 0.32's, as seen on the wire. Without ``--shutdown-timeout`` SIGTERM ends all work
at once: an open stream says an error event (code 500) and then ``[DONE]`` in good order, an answer
not streamed is a 500. With it, what runs may end within that time, and the rest ends like that;
meanwhile the engine still listens, is healthy, and refuses new work with 500.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from types import TracebackType

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from tidegate.simulator.engine_model import Engine
from tidegate.simulator.fake_engine.errors import ApiError
from tidegate.simulator.fake_engine.handlers import Handlers
from tidegate.simulator.fake_engine.loop import EngineLoop
from tidegate.simulator.fake_engine.metrics import EngineMetrics
from tidegate.simulator.fake_engine.options import Options
from tidegate.simulator.fake_engine.request_log import RequestLog

_MAX_BODY_BYTES = 256 * 1024 * 1024
_KEEP_ALIVE_SECONDS = 5.0  # uvicorn's default, which vLLM keeps
_MAX_UDS_BYTES = 100


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return error.response()
    except web.HTTPException as error:
        return web.Response(
            body=orjson.dumps({"detail": error.reason}),
            status=error.status,
            content_type="application/json",
        )


class FakeEngine:
    """One engine in this process. ``async with``: starts, and on exit aborts what runs."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.engine = Engine(options.engine)
        self.port = options.port
        self._metrics = EngineMetrics(self.engine, options.served_names[0])
        self._log = RequestLog(None)
        self._loop: EngineLoop | None = None
        self._handlers: Handlers | None = None
        self._runner: web.AppRunner | None = None
        self._sites: list[web.BaseSite] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Base URL over TCP, or over the Unix socket with a dummy host."""
        if self.options.uds is not None:
            return "http://engine"
        host = self.options.host
        return f"http://{'127.0.0.1' if host in ('0.0.0.0', '') else host}:{self.port}"

    @property
    def live_sequences(self) -> int:
        """Sequences that the engine has not ended."""
        return 0 if self._loop is None else self._loop.live_sequences

    @property
    def open_answers(self) -> int:
        """HTTP requests that wait for tokens."""
        return 0 if self._handlers is None else self._handlers.work.open_answers

    @property
    def stepping(self) -> asyncio.Task[None]:
        """The engine's loop; it only ends by itself with an exception, which ``stop`` raises."""
        assert self._task is not None
        return self._task

    async def start(self) -> None:
        """Listen. OSError: the address or the log file can't be had."""
        await asyncio.sleep(self.options.startup_delay_seconds)
        self._log = RequestLog(self.options.request_log, steps=self.options.log_steps)
        self._loop = EngineLoop(self.engine, self._metrics, self._log)
        self._handlers = Handlers(self.options, self._loop, self._metrics)
        app = web.Application(middlewares=[_errors], client_max_size=_MAX_BODY_BYTES)
        app.add_routes(self._handlers.routes())
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=_KEEP_ALIVE_SECONDS,
            shutdown_timeout=0.5,
        )
        await self._runner.setup()
        try:
            await self._listen(self._runner)
        except BaseException:
            await self._runner.cleanup()
            self._log.close()
            raise
        self._task = asyncio.create_task(self._loop.run(), name="engine loop")

    async def _listen(self, runner: web.AppRunner) -> None:
        uds = self.options.uds
        if uds is not None:
            site: web.BaseSite = web.SockSite(runner, _bound_socket(uds), backlog=2048)
        else:
            site = web.TCPSite(
                runner, self.options.host, self.options.port, backlog=2048, reuse_address=True
            )
        await site.start()
        self._sites.append(site)
        if uds is None:
            self.port = runner.addresses[0][1]

    async def stop(self, drain_seconds: float = 0.0) -> None:
        """Let running work end for up to ``drain_seconds``, then abort the rest and close."""
        if self._runner is None or self._loop is None or self._handlers is None:
            return
        self._handlers.work.draining = True
        if not self.stepping.done():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(drain_seconds):
                    await self._handlers.work.idle.wait()
        for site in self._sites:
            await site.stop()
        self._loop.stop()
        self.stepping.cancel()
        await asyncio.wait({self.stepping})
        await self._runner.cleanup()
        self._log.close()
        self._runner = None
        if not self.stepping.cancelled():
            self.stepping.result()

    async def __aenter__(self) -> FakeEngine:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()


def _bound_socket(path: str) -> socket.socket:
    """A Unix socket at ``path``. As vLLM's, it stays when the engine ends, and whatever is there
    makes the start fail: who starts an engine in a used folder removes the old socket first.
    """
    if len(os.fsencode(path)) >= _MAX_UDS_BYTES:
        raise OSError(f"--uds path must be under {_MAX_UDS_BYTES} bytes: {path}")
    bound = socket.socket(socket.AF_UNIX)
    try:
        bound.bind(path)
    except OSError:
        bound.close()
        raise
    return bound


async def serve(options: Options) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    engine = FakeEngine(options)
    starting = asyncio.create_task(engine.start())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        return
    starting.result()
    where = f"unix:{options.uds}" if options.uds else f"http://{options.host}:{engine.port}"
    print(f"fake engine serves {', '.join(options.served_names)} on {where}", flush=True)
    await asyncio.wait({stopping, engine.stepping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    await engine.stop(options.shutdown_timeout_seconds)
