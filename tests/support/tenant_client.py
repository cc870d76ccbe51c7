"""A tenant's client for tests: requests of known sizes, and each one's id and fate."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp


@dataclass(slots=True)
class Sent:
    """One request: Unix times in seconds, the id that sidecar and engine know it by, the fate."""

    sent_at: float
    request_id: str | None = None
    status: int | None = None
    code: str | None = None
    retry_after_seconds: int | None = None
    complete: bool = False
    """The whole answer came, its end marker included."""
    ended_at: float = 0.0
    error: str | None = None

    @property
    def lost(self) -> bool:
        """Neither answered in full nor refused before any work was done."""
        refused = self.status == 503 and self.code in ("draining", "no_engine")
        return not self.complete and not refused


class TenantClient:
    """Completions of exact prompt and output lengths with one API key; an async context manager."""

    def __init__(self, endpoint: str, key: str, model: str, *, seed: int = 0) -> None:
        self.url = f"{endpoint}/v1/completions"
        self.key = key
        self.model = model
        self.requests: list[Sent] = []
        self._random = random.Random(seed)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> TenantClient:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
            headers={"Authorization": f"Bearer {self.key}"},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def complete(
        self, prompt_tokens: int, output_tokens: int, *, stream: bool = False
    ) -> Sent:
        """Send one request and read its answer to the end; faults are recorded, not raised."""
        assert self._session is not None
        body = self._body(prompt_tokens, output_tokens, stream)
        sent = Sent(sent_at=time.time())
        self.requests.append(sent)
        try:
            async with self._session.post(self.url, json=body) as answer:
                sent.status = answer.status
                sent.request_id = answer.headers.get("x-request-id")
                if (seconds := answer.headers.get("Retry-After")) is not None:
                    sent.retry_after_seconds = int(seconds)
                content = await answer.read()
                if answer.status != 200:
                    sent.code = (await answer.json())["error"]["code"]
                elif stream:
                    sent.complete = content.rstrip().endswith(b"data: [DONE]")
                else:
                    sent.complete = "choices" in await answer.json()
        except (aiohttp.ClientError, ConnectionError) as error:
            sent.error = repr(error)
        finally:
            sent.ended_at = time.time()
        return sent

    @asynccontextmanager
    async def streaming(
        self, prompt_tokens: int, output_tokens: int | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A stream of which the first bytes have come; broken off when the context ends. Without
        ``output_tokens`` the request names no number."""
        assert self._session is not None
        body = self._body(prompt_tokens, output_tokens, stream=True)
        async with self._session.post(self.url, json=body) as answer:
            assert answer.status == 200, await answer.text()
            await answer.content.readany()
            yield answer

    def _body(self, prompt_tokens: int, output_tokens: int | None, stream: bool) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": [self._random.randrange(1000, 30000) for _ in range(prompt_tokens)],
            "stream": stream,
        }
        return body if output_tokens is None else body | {"max_tokens": output_tokens}

    async def keep_sending(
        self, until: float, prompt_tokens: int, output_tokens: int, *, stream: bool = False
    ) -> None:
        """A closed loop of one: the next request as soon as the last ended, until a Unix time."""
        while time.time() < until:
            await self.complete(prompt_tokens, output_tokens, stream=stream)

    @property
    def ids(self) -> set[str]:
        return {sent.request_id for sent in self.requests if sent.request_id}
