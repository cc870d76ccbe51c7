"""A tenant's client for tests: requests of known sizes, and each one's id and fate."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import aiohttp


@dataclass(slots=True)
class Sent:
    """One request: Unix times in seconds, the id that sidecar and engine know it by, the fate."""

    sent_at: float
    request_id: str | None = None
    status: int | None = None
    code: str | None = None
    complete: bool = False
    """The whole answer came, its end marker included."""
    ended_at: float = 0.0
    error: str | None = None


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
        body = {
            "model": self.model,
            "prompt": [self._random.randrange(1000, 30000) for _ in range(prompt_tokens)],
            "max_tokens": output_tokens,
            "stream": stream,
        }
        sent = Sent(sent_at=time.time())
        self.requests.append(sent)
        try:
            async with self._session.post(self.url, json=body) as answer:
                sent.status = answer.status
                sent.request_id = answer.headers.get("x-request-id")
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

    async def keep_sending(
        self, until: float, prompt_tokens: int, output_tokens: int, *, stream: bool = False
    ) -> None:
        """A closed loop of one: the next request as soon as the last ended, until a Unix time."""
        while time.time() < until:
            await self.complete(prompt_tokens, output_tokens, stream=stream)

    @property
    def ids(self) -> set[str]:
        return {sent.request_id for sent in self.requests if sent.request_id}
