"""The callers of a soak: tenants that read to the end, hang up at any moment, and send nonsense.

Each caller is a closed loop with a pause. What a request is to be is drawn: a whole answer or a
stream, one prompt or several, a client that leaves while it waits, in the middle of a stream, or of
its own body, one that reads slowly, one with a key of nobody's or a body that is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from soak_judge import View
from soak_stack import MODEL, NOBODY, TENANTS, VISITOR, Stack

PATIENCE_SECONDS = 60.0
_ODD_BODIES: tuple[bytes, ...] = (
    b"{",
    b"[]",
    b'{"model": "none-such", "prompt": "a"}',
    b'{"model": "' + MODEL.encode() + b'", "prompt": []}',
    b'{"model": "' + MODEL.encode() + b'", "prompt": "a", "max_tokens": -1}',
    b'{"model": "' + MODEL.encode() + b'", "prompt": "a", "priority": -1000}',
    json.dumps({"model": MODEL, "prompt": [1] * 5_000}).encode(),
)


class Callers:
    """All of them; ``run`` until cancelled, then ``finish``."""

    def __init__(self, stack: Stack, session: aiohttp.ClientSession, seed: int) -> None:
        self._stack = stack
        self._session = session
        self._random = random.Random(seed)
        self.running = True

    async def run(self, callers_of_tenant: int) -> None:
        """Until ``running`` is false and each has ended its last request."""
        async with asyncio.TaskGroup() as group:
            for tenant in (*TENANTS, VISITOR):
                for _ in range(callers_of_tenant):
                    group.create_task(self._caller(tenant))

    async def _caller(self, tenant: str) -> None:
        ways: tuple[tuple[int, Callable[[View], Awaitable[None]]], ...] = (
            (30, self._whole),
            (30, self._stream),
            (8, self._hang_up_in_stream),
            (8, self._hang_up_waiting),
            (4, self._slow_reader),
            (4, self._half_a_body),
            (4, self._odd),
            (2, self._models),
            (1, self._nobody),
        )
        weights, acts = zip(*ways, strict=True)
        while self.running:
            (act,) = self._random.choices(acts, weights)
            key = self._stack.keys[tenant]
            view = View(tenant, key, time.time())
            self._stack.views.append(view)
            in_use = self._stack.in_use
            in_use[key] = in_use.get(key, 0) + 1
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await act(view)
            except TimeoutError:
                view.fault = f"{act.__name__}: no end after {PATIENCE_SECONDS} s"
            except (aiohttp.ClientError, OSError) as error:
                view.broke = f"{act.__name__}: {type(error).__name__}"
            finally:
                in_use[key] -= 1
                view.ended_at = time.time()
            await asyncio.sleep(self._random.expovariate(2.0))

    def _body(self, **extra: Any) -> bytes:
        draw = self._random
        prompt: Any = [draw.randrange(1_000, 30_000) for _ in range(draw.randint(5, 300))]
        if draw.random() < 0.1:
            prompt = [prompt, prompt[::-1]]
        body = {"model": MODEL, "prompt": prompt, "max_tokens": draw.choice((1, 10, 60)), **extra}
        if draw.random() < 0.1:
            body["n"] = 2
        return json.dumps(body).encode()

    def _post(self, view: View, body: bytes, key: str | None = None) -> Any:
        headers = {
            "Authorization": f"Bearer {key or view.key}",
            "Content-Type": "application/json",
        }
        return self._session.post(f"{self._stack.url}/v1/completions", data=body, headers=headers)

    async def _whole(self, view: View) -> None:
        async with self._post(view, self._body()) as answer:
            _head(view, answer)
            document = await answer.json()
        if answer.status == 200:
            view.whole = bool(document["choices"])
            view.tokens = _tokens(document["usage"])

    async def _stream(self, view: View) -> None:
        body = self._body(stream=True, stream_options={"include_usage": True})
        async with self._post(view, body) as answer:
            _head(view, answer)
            _read_events(view, await answer.read())

    async def _slow_reader(self, view: View) -> None:
        body = self._body(stream=True)
        content = b""
        async with self._post(view, body) as answer:
            _head(view, answer)
            while chunk := await answer.content.readany():
                content += chunk
                await asyncio.sleep(0.05)
        _read_events(view, content)

    async def _hang_up_in_stream(self, view: View) -> None:
        async with self._post(view, self._body(stream=True)) as answer:
            _head(view, answer)
            for _ in range(self._random.randint(1, 8)):
                if not await answer.content.readline():
                    break
            view.left = True
            if self._random.random() < 0.5 and answer.connection is not None:
                assert answer.connection.transport is not None
                answer.connection.transport.abort()
            answer.close()

    async def _hang_up_waiting(self, view: View) -> None:
        view.left = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._random.expovariate(4.0)):
                async with self._post(view, self._body()) as answer:
                    await answer.read()
                _head(view, answer)
                view.whole = answer.status == 200

    async def _half_a_body(self, view: View) -> None:
        """Half of it, then nothing for a while, then gone; or too long a while: 408."""
        view.left = True
        host, _, port = self._stack.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            head = (
                f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {view.key}\r\n"
                "Content-Type: application/json\r\nContent-Length: 10000\r\n\r\n"
            )
            writer.write(head.encode() + b'{"model"')
            await writer.drain()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._random.choice((0.05, 0.3, 4.5))):
                    await reader.read(1)
        finally:
            writer.transport.abort()

    async def _odd(self, view: View) -> None:
        async with self._post(view, self._random.choice(_ODD_BODIES)) as answer:
            _head(view, answer)
            await answer.read()
        if answer.status // 100 != 4 and answer.status not in (503, 504):  # no engine to judge it
            view.fault = f"an odd body was answered {answer.status}"

    async def _models(self, view: View) -> None:
        headers = {"Authorization": f"Bearer {view.key}"}
        async with self._session.get(f"{self._stack.url}/v1/models", headers=headers) as answer:
            _head(view, answer)
            await answer.read()
        view.whole = answer.status == 200

    async def _nobody(self, view: View) -> None:
        async with self._post(view, self._body(), NOBODY) as answer:
            _head(view, answer)
            view.key = NOBODY
            await answer.read()


def _head(view: View, answer: aiohttp.ClientResponse) -> None:
    view.status, view.request_id = answer.status, answer.headers.get("x-request-id")


def _tokens(usage: dict[str, Any]) -> tuple[int, int]:
    return usage["prompt_tokens"], usage["completion_tokens"]


def _read_events(view: View, content: bytes) -> None:
    """Whether a stream ended as it should, and the usage that it told."""
    if view.status != 200:
        return
    lines = [line for line in content.split(b"\n") if line.startswith(b"data: ")]
    failed = any(line.startswith(b'data: {"error"') for line in lines)
    view.whole = bool(lines) and lines[-1] == b"data: [DONE]" and not failed
    for line in lines:
        if b'"usage"' in line and (usage := json.loads(line[6:]).get("usage")):
            view.tokens = _tokens(usage)
