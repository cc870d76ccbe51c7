"""Reading an OpenAI-shaped stream in tests, and noting when its parts came."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

DONE = "[DONE]"


async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Each event's JSON; ends at `[DONE]`. ValueError if the stream ends without it."""
    async for line in answer.content:
        field, _, value = line.decode().strip().partition(": ")
        if field != "data":
            continue
        if value == DONE:
            return
        yield json.loads(value)
    raise ValueError(f"the stream ended without {DONE}")
