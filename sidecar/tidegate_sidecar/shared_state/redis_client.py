"""redis-py, set up so that it neither retries nor waits for longer than it is told.

It takes 40 MB and a second to load, so it is imported (by ``store``, in a thread) only where a
policy names a server.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import RedisError

CONNECTIONS = 4
"""One for what requests ask, one for what follows, one that listens, and one to come back."""

ERRORS: tuple[type[Exception], ...] = (RedisError, OSError)
"""Of a server that is not there, or does not do what it is asked."""


def connect(address: str, secret_file: str | None, patience_seconds: float) -> Redis:
    """A client; nothing is sent yet."""
    pool = BlockingConnectionPool.from_url(
        address,
        max_connections=CONNECTIONS,
        timeout=patience_seconds,
        socket_timeout=patience_seconds,
        socket_connect_timeout=patience_seconds,
        retry=Retry(NoBackoff(), 0),
        credential_provider=None if secret_file is None else _SecretFile(Path(secret_file)),
        protocol=2,
        driver_info=None,
        decode_responses=True,
    )
    return Redis(connection_pool=pool)


async def disconnect(client: Redis) -> None:
    """No connection of it is left, whoever uses it."""
    await client.aclose(close_connection_pool=False)
    await client.connection_pool.disconnect()


class _SecretFile(CredentialProvider):
    """The password, read for each connection: one that was rotated is in force with the next."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get_credentials(self) -> tuple[str]:
        # What is no text is no password: the server refuses it, and that is said.
        return (self._path.read_text(encoding="utf-8", errors="replace").strip(),)

    async def get_credentials_async(self) -> tuple[str]:
        return await asyncio.to_thread(self.get_credentials)
