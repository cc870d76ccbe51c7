"""A proxy before a real API server: it fails as one does, and remembers what was written.

Between it and an operator nothing is pretended: requests that no fault takes go to the server and
come back as they are, watches as they stream. A fault is a function that may take a request
instead; the usual ones are made below. ``kill_after`` is the end of a machine: from one moment on
nothing gets through, in either direction.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

Json = dict[str, Any]
_END_TO_END = ("Authorization", "Content-Type", "Accept", "User-Agent")
_WRITES = ("POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True, slots=True)
class Call:
    """One request to the API server."""

    method: str
    path: str
    query: Mapping[str, str]
    body: bytes

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") in ("1", "true", "True")

    @property
    def is_lease(self) -> bool:
        return "/leases" in self.path

    @property
    def is_write(self) -> bool:
        """Whether it would change what is stored."""
        return self.method in _WRITES and "dryRun" not in self.query

    @property
    def changes(self) -> str:
        """What it writes: verb and path below the group, as the audit log has it."""
        parts = [part for part in self.path.split("/") if part]
        parts = parts[parts.index("namespaces") + 1 :] if "namespaces" in parts else parts[3:]
        if self.method == "POST":
            parts.append(json.loads(self.body)["metadata"]["name"])
        return f"{self.method} {'/'.join(parts)}"


Forward = Callable[[], Awaitable[web.StreamResponse]]
"""Sends the call on to the server, and the answer back."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What answers some calls in the server's place."""

    takes: Callable[[Call], bool]
    answer: Callable[[web.Request, Forward], Awaitable[web.StreamResponse]]


class FaultyApiServer:
    """An async context manager; serves plain HTTP on a port of its own."""

    def __init__(self, kubeconfig: Path) -> None:
        """``kubeconfig`` names the server and holds the credentials that the operator uses."""
        self._content = yaml.safe_load(kubeconfig.read_text())
        self.fault: Fault | None = None
        self.hits = 0
        """Calls that the present fault took."""
        self.writes: list[str] = []
        """That the server accepted of what came since the last ``inject``, in order; no Leases."""
        self.killed = asyncio.Event()
        self._writes_left: int | None = None
        self._watches: set[asyncio.Transport] = set()
        """Asked for and not ended, whoever answers them."""
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> FaultyApiServer:
        cluster = self._content["clusters"][0]["cluster"]
        self._server = cluster["server"]
        ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=ca)
        self._session = await self._stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=context),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        )
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._serve)
        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True
        )
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self._port = runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def kubeconfig(self, path: Path) -> Path:
        """Write one that leads here; the path."""
        content = json.loads(json.dumps(self._content))
        content["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{self._port}"}
        path.write_text(yaml.safe_dump(content))
        return path

    def inject(self, fault: Fault | None) -> None:
        """From now on; None: no fault."""
        self.fault, self.hits, self.writes = fault, 0, []

    def break_watches(self) -> None:
        """Those that are open, or being opened, end without a word, and are asked for anew."""
        for transport in self._watches:
            transport.abort()

    def kill_after(self, writes: int) -> None:
        """The machine dies as soon as the server did so many writes, before it hears of the last;
        0: it is a new one, and lives."""
        self.inject(None)
        self.killed.clear()
        self._writes_left = writes or None

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        call = Call(request.method, request.path, query, await request.read())
        if self.killed.is_set():
            return reset(request)

        if not call.is_watch:
            return await self._answer(call, request)
        assert request.transport is not None
        transport = request.transport
        self._watches.add(transport)
        try:
            return await self._answer(call, request)
        finally:
            self._watches.discard(transport)

    async def _answer(self, call: Call, request: web.Request) -> web.StreamResponse:
        async def forward() -> web.StreamResponse:
            return await self._forward(call, request)

        if self.fault is not None and self.fault.takes(call):
            self.hits += 1
            return await self.fault.answer(request, forward)
        return await forward()

    async def _forward(self, call: Call, request: web.Request) -> web.StreamResponse:
        headers = {name: request.headers[name] for name in _END_TO_END if name in request.headers}
        headers["Accept-Encoding"] = "identity"
        writes = self.writes
        async with self._session.request(
            call.method,
            f"{self._server}{request.raw_path}",
            data=call.body or None,
            headers=headers,
        ) as answer:
            if call.is_watch and answer.status == 200:
                return await self._stream(request, answer)
            told = await answer.read()
        if call.is_write and not call.is_lease and answer.status < 300:
            self._wrote(call, writes)
        if self.killed.is_set():
            return reset(request)
        kept = ("Content-Type", "Retry-After")
        kept_headers = {name: answer.headers[name] for name in kept if name in answer.headers}
        return web.Response(status=answer.status, body=told, headers=kept_headers)

    def _wrote(self, call: Call, writes: list[str]) -> None:
        writes.append(call.changes)
        if self._writes_left is not None:
            self._writes_left -= 1
            if self._writes_left == 0:
                self.killed.set()

    async def _stream(
        self, request: web.Request, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": answer.headers["Content-Type"]})
        await response.prepare(request)
        async for part in answer.content.iter_any():
            await response.write(part)
        return response


# --- faults


def reset(request: web.Request) -> web.Response:
    """End the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)


def status_answer(code: int, reason: str, message: str, **headers: str) -> web.Response:
    """An answer as the API server words its own errors."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    return web.json_response(body, status=code, headers=told)


def answering(
    takes: Callable[[Call], bool], code: int, reason: str, message: str, **headers: str
) -> Fault:
    """Answer some calls with an error, and do nothing of what they ask."""

    async def answer(request: web.Request, forward: Forward) -> web.StreamResponse:
        return status_answer(code, reason, message, **headers)

    return Fault(takes, answer)


def losing_answers(takes: Callable[[Call], bool]) -> Fault:
    """Do what some calls ask, and break the connection instead of saying so."""

    async def answer(request: web.Request, forward: Forward) -> web.StreamResponse:
        await forward()
        return reset(request)

    return Fault(takes, answer)


class Holding:
    """Keeps some calls back until they are released, as a network does: they arrive then, whether
    or not whoever sent them still waits."""

    def __init__(self, takes: Callable[[Call], bool]) -> None:
        self.late: set[asyncio.Task[web.StreamResponse]] = set()
        self.fault = Fault(takes, self._answer)
        self._released = asyncio.Event()

    async def release(self) -> list[int]:
        """Let all of them go on; what the server answered to each."""
        self._released.set()
        return [answer.status for answer in await asyncio.gather(*self.late)]

    async def _answer(self, request: web.Request, forward: Forward) -> web.StreamResponse:
        task = asyncio.create_task(self._arrive(forward))
        self.late.add(task)
        return await asyncio.shield(task)

    async def _arrive(self, forward: Forward) -> web.StreamResponse:
        await self._released.wait()
        return await forward()


def silent_watches() -> Fault:
    """Accept every watch, and never tell anything."""

    async def answer(request: web.Request, forward: Forward) -> web.StreamResponse:
        response = await _begun(request)
        await asyncio.Event().wait()
        return response

    return Fault(lambda call: call.is_watch, answer)


def watches_that_say(line: bytes) -> Fault:
    """Answer every watch with these bytes, and end it."""

    async def answer(request: web.Request, forward: Forward) -> web.StreamResponse:
        response = await _begun(request)
        await response.write(line)
        return response

    return Fault(lambda call: call.is_watch, answer)


async def _begun(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    return response


EXPIRED = (
    json.dumps(
        {
            "type": "ERROR",
            "object": {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "message": "too old resource version",
                "reason": "Expired",
                "code": 410,
            },
        }
    ).encode()
    + b"\n"
)
"""A watch event: the server no longer has what came after the version asked for."""
