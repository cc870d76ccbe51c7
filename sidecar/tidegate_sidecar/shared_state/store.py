"""The connection to the server: with a deadline on the request path, and a way back.

A server is *here* or *away*. What requests ask (:meth:`Store.ask`) is sent together with what
others ask meanwhile, one batch at a time, so that a burst costs a few round trips. What is not sent
within the deadline (a setting), or not answered within another, is given up
(:class:`StoreAway`); while the server is away, at once. It is away after the first error, or after
``MISSES`` batches in a row that were not answered in time. Away, ``follow`` asks again and again,
with a pause that doubles; it is here again when it takes a write within the deadline (a full server
answers reads alone) and what waited for it was sent.

Nothing is retried behind the caller's back: whether an operation that was not answered was carried
out is not known, and only its sender knows what that means.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate_sidecar.shared_state.outbox import StoreAway

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub

log = logging.getLogger("tidegate.sidecar.shared_state")

MISSES = 3
PATIENCE_SECONDS = 1.0
"""The longest that anything else waits for it."""
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0
BATCH = 64
_TURNS = 4
"""Of the loop that a reply needs to get through, once it has arrived: a deadline that passed while
our own loop stood still is not the server's."""

_SCRIPT = Path(__file__).with_name("limits.lua").read_text(encoding="utf-8")

Operation = tuple[Sequence[str], Sequence[str | int]]
"""Keys and arguments of the script."""


class _Asked(NamedTuple):
    operation: Operation
    answer: asyncio.Future[list[int]]
    at: float
    """On the loop's clock."""


class Store:
    """One server; ``returned`` is awaited each time before it counts as here (again)."""

    def __init__(
        self,
        address: str,
        secret_file: str | None,
        *,
        name: str,
        returned: Callable[[], Awaitable[None]],
        deadline_seconds: float,
    ) -> None:
        self.here = False
        self.error: str | None = "not connected yet"
        """Why it is away."""
        self.since = time.time()
        """Wall clock: since when it is here, or away."""
        self._name = name
        self._returned = returned
        self._deadline_seconds = deadline_seconds
        self._misses = 0
        self._asked: list[_Asked] = []
        self._anything_asked = asyncio.Event()
        self._gone = asyncio.Event()
        self._gone.set()
        self._sha = ""
        self._address = address
        self._secret_file = secret_file
        self._connected: Redis | None = None
        self.errors: tuple[type[Exception], ...] = (OSError,)
        """What is raised of a connection that breaks."""

    async def ask(self, keys: Sequence[str], arguments: Sequence[str | int]) -> list[int]:
        """One operation of the script, for a request; StoreAway: it may yet be done."""
        if not self.here:
            raise StoreAway
        loop = asyncio.get_running_loop()
        asked = _Asked((keys, arguments), loop.create_future(), loop.time())
        self._asked.append(asked)
        self._anything_asked.set()
        return await asked.answer

    async def answer(self) -> None:
        """Send what is asked; runs for as long as the store is used."""
        try:
            while True:
                await self._anything_asked.wait()
                batch, self._asked = self._asked[:BATCH], self._asked[BATCH:]
                if not self._asked:
                    self._anything_asked.clear()
                await self._answer(batch)
        finally:
            _give_up(self._asked)

    async def _answer(self, batch: Sequence[_Asked]) -> None:
        oldest = asyncio.get_running_loop().time() - self._deadline_seconds
        sent = [asked for asked in batch if asked.at >= oldest] if self.here else []
        reply = asyncio.ensure_future(self._execute([asked.operation for asked in sent]))
        try:
            await asyncio.wait({reply}, timeout=self._deadline_seconds)
            for _ in range(_TURNS):
                if not reply.done():
                    await asyncio.sleep(0)
            if reply.done():
                self._misses = 0
                for asked, result in zip(sent, reply.result(), strict=True):
                    if not asked.answer.done():
                        asked.answer.set_result(result)
                return None
            self._misses += 1
            if self._misses >= MISSES:
                self._leave(self._too_slow())
        except self.errors as error:
            self._leave(_shown(error))
        finally:
            reply.cancel()
            _give_up(batch)

    async def _execute(self, operations: Sequence[Operation]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for keys, arguments in operations:
            pipeline.evalsha(self._sha, len(keys), *keys, *arguments)
        answers: list[Any] = await pipeline.execute()
        return answers

    async def send(self, operations: Sequence[Operation]) -> None:
        """Operations of the script, off the request path; StoreAway: some may not be done."""
        await self._patiently(self._execute(operations))

    async def publish(self, channel: str, message: str) -> None:
        """Tell whoever listens."""
        await self._patiently(self._client.publish(channel, message))

    def listener(self) -> PubSub:
        """A subscription of its own connection."""
        return self._client.pubsub()

    def failed(self, error: Exception) -> None:
        """A connection that somebody else reads broke."""
        self._leave(_shown(error))

    async def follow(self) -> None:
        """Come back each time that it is away; runs for as long as the store is used."""
        if self._connected is None:
            module = "tidegate_sidecar.shared_state.redis_client"
            redis_client = await asyncio.to_thread(import_module, module)
            self.errors = redis_client.ERRORS
            self._connected = redis_client.connect(
                self._address, self._secret_file, PATIENCE_SECONDS
            )
        while True:
            await self._gone.wait()
            pause = FIRST_PAUSE_SECONDS
            while not await self._return():
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def close(self) -> None:
        """No connection is left."""
        if self._connected is not None:
            from tidegate_sidecar.shared_state.redis_client import disconnect

            await disconnect(self._connected)

    @property
    def _client(self) -> Redis:
        assert self._connected is not None, "nothing is asked before it is here"
        return self._connected

    async def _return(self) -> bool:
        try:
            self._sha = await self._patiently(self._client.script_load(_SCRIPT))
            async with asyncio.timeout(self._deadline_seconds):
                await self._client.set(f"tidegate:pod:{self._name}", 1, ex=60)
            await self._returned()
        except TimeoutError:
            self._leave(self._too_slow())
            return False
        except self.errors as error:
            self._leave(_shown(error))
            return False
        except StoreAway:
            return False
        self.here, self.error, self.since, self._misses = True, None, time.time(), 0
        self._gone.clear()
        log.info("shared state is here")
        return True

    async def _patiently(self, answer: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await answer
        except TimeoutError:
            self._leave(f"no answer within {PATIENCE_SECONDS:.0f} s")
        except self.errors as error:
            self._leave(_shown(error))
        raise StoreAway

    def _too_slow(self) -> str:
        return f"no answer within {self._deadline_seconds * 1000:.0f} ms"

    def _leave(self, error: str) -> None:
        self.error = error
        if self.here:
            self.here, self.since = False, time.time()
            log.warning("shared state is away: %s", error)
        self._gone.set()


def _give_up(asked: Sequence[_Asked]) -> None:
    for each in asked:
        if not each.answer.done():
            each.answer.set_exception(StoreAway())


def _shown(error: Exception) -> str:
    """What a person is told; errors of the server name no content."""
    return str(error)[:200] or type(error).__name__
