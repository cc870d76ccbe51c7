"""The pods that a router knows: where they are, whether they serve, what they have to do.

Two facts of a pod come from elsewhere: that it exists (:mod:`.pod_sources`, whose last good list
stays) and its own word, read from its admin port every ``poll_seconds``: ready or not, how much
waits. What was sent to it and has not ended is counted here at once.

After each round of readings queues are evened out (:mod:`.spread`, :mod:`.groups`): a pod that
became free or new gets what others hand back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Collection, Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import orjson

from tidegate.scheduling.contracts import ServingPod
from tidegate_sidecar.engine import EngineClient, EngineUnreachable, Exchange
from tidegate_sidecar.engine_address import EngineAddress
from tidegate_sidecar.engine_connection import EngineBroken
from tidegate_sidecar.router.breaker import Breaker
from tidegate_sidecar.router.groups import Groups, Route
from tidegate_sidecar.router.pod_sources import PodSource

log = logging.getLogger("tidegate.router")

LOOK_SECONDS = 2.0
MISSES_ALLOWED = 3
"""Looks without an answer in time, after which a pod that was ready is not."""
_MAX_LOAD_BYTES = 64 << 10
_UNHEARD = (EngineBroken, TimeoutError, KeyError, TypeError, ValueError)
"""Whoever answers so is there, and may be anybody."""


class RoutedPod:
    """One pod, as the router sees it."""

    def __init__(self, told: ServingPod, silence_seconds: float) -> None:
        self.told = told
        self.name = told.name
        self.client = EngineClient(
            EngineAddress.parse(told.address), silence_seconds=silence_seconds
        )
        self.admin = EngineClient(EngineAddress.parse(told.admin_address))
        self.breaker = Breaker()
        self.ready = False
        self.group = told.group
        self.queued = 0
        """As it said last."""
        self.congested = False
        """Some waited there at its last two words."""
        self.seats: int | None = None
        """Sequences that its engine runs at once; None: not known."""
        self._told_in_hand = 0
        self._requests_then = 0
        self.requests = 0
        """Sent and not ended."""
        self.outstanding_tokens = 0
        self.misses = 0
        self._disowned = False

    @property
    def in_hand(self) -> int:
        """Sequences that wait or run there, of whatever router: as it said last, and what was sent
        and ended since."""
        return max(self.requests, self._told_in_hand + self.requests - self._requests_then)

    def says(self, load: Mapping[str, Any]) -> None:
        """Take what it said of itself; KeyError, TypeError or ValueError: it cannot be read."""
        queued = int(load["queued"])
        running, seats = load.get("running"), load.get("seats")
        self.congested = queued > 0 and self.queued > 0
        self.queued = queued
        self._told_in_hand = queued + int(running or 0)
        self._requests_then = self.requests
        self.seats = None if seats is None else max(1, int(seats))

    def disowns(self, status: int) -> bool:
        """Whether it knows nothing of what was signed here, by the status of its answer: the key
        was looked up before. Said once, until it does."""
        was, self._disowned = self._disowned, status == HTTPStatus.UNAUTHORIZED
        if self._disowned and not was:
            log.warning(
                "pod %s does not accept what this router signs: both need the same identity keys, "
                "clocks that agree and the same policy",
                self.name,
            )
        return self._disowned

    @contextlib.contextmanager
    def carrying(self, tokens: int) -> Iterator[None]:
        """Count a request of so much work while the context lasts."""
        self.requests += 1
        self.outstanding_tokens += tokens
        try:
            yield
        finally:
            self.requests -= 1
            self.outstanding_tokens -= tokens

    def close(self) -> None:
        """Close every connection to it."""
        self.client.close()
        self.admin.close()


class PodSet:
    """All pods; ``follow`` is the loop that keeps it true."""

    def __init__(
        self,
        source: PodSource,
        token_file: Path | None,
        poll_seconds: float,
        silence_seconds: float,
    ) -> None:
        self._source = source
        self._token_file = token_file
        self._poll_seconds = poll_seconds
        self._silence_seconds = silence_seconds
        self._loop = asyncio.get_running_loop()
        self._pods: dict[str, RoutedPod] = {}
        self._leaving: list[RoutedPod] = []
        self.groups = Groups()
        self.handed_back = 0
        """Requests that pods were asked to hand back and did."""
        self.met = False
        """One of them has served since this router started."""

    @property
    def pods(self) -> Collection[RoutedPod]:
        """All that the list names."""
        return self._pods.values()

    def serving(self, but: Collection[str] = ()) -> Sequence[RoutedPod]:
        """Those that a request may be sent to now, ``but`` these."""
        now = self._loop.time()
        return [
            pod
            for name, pod in self._pods.items()
            if pod.ready and name not in but and pod.breaker.closed(now)
        ]

    def route(self, tier: str, but: Collection[str] = ()) -> Route[RoutedPod] | None:
        """Those that may serve a request of a tier now, ``but`` these; None: there are none."""
        serving = self.serving()
        self.groups.look(serving, self._loop.time())
        return self.groups.route(tier, [pod for pod in serving if pod.name not in but])

    async def follow(self) -> None:
        """Look again and again."""
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("looking at the pods failed")
            await asyncio.sleep(self._poll_seconds)

    async def look(self) -> None:
        """One round: the list, each pod's word, the queues."""
        self._take_list()
        pods = list(self._pods.values())
        token = self._token()
        await asyncio.gather(*(self._ask(pod, token) for pod in pods))
        serving = self.serving()
        self.met = self.met or bool(serving)
        self.groups.look(serving, self._loop.time())
        moves = self.groups.to_hand_back(serving)
        await asyncio.gather(
            *(self._take_back(self._pods[name], count, token) for name, count in moves.items())
        )
        now = self._loop.time()
        for pod in [*pods, *self._leaving]:
            pod.client.sweep(now)
            pod.admin.sweep(now)
        for pod in [pod for pod in self._leaving if not pod.client.open_exchanges]:
            self._leaving.remove(pod)
            pod.close()

    def close(self) -> None:
        """Close every connection."""
        for pod in [*self._pods.values(), *self._leaving]:
            pod.close()

    def _take_list(self) -> None:
        listed = self._source.take()
        if listed is None:
            return
        told = {pod.name: pod for pod in listed}
        try:
            new = {
                name: RoutedPod(pod, self._silence_seconds)
                for name, pod in told.items()
                if name not in self._pods or self._pods[name].told != pod
            }
        except ValueError as error:
            log.warning("the list of pods stays as it was: %s", error)
            return
        for name in list(self._pods):
            if name not in told or name in new:
                self._leaving.append(self._pods.pop(name))
                log.info("pod %s has left the list", name)
        self._pods.update(new)
        for pod in new.values():
            log.info("pod %s is listed, at %s", pod.name, pod.told.address)

    def _token(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        return {"Authorization": f"Bearer {self._token_file.read_text(encoding='utf-8').strip()}"}

    async def _ask(self, pod: RoutedPod, token: dict[str, str]) -> None:
        was_ready = pod.ready
        await self._hear(pod, token)
        if pod.ready is not was_ready:
            log.info("pod %s %s", pod.name, "is ready" if pod.ready else "is not ready any more")

    async def _hear(self, pod: RoutedPod, token: dict[str, str]) -> None:
        try:
            status, load = await _said(pod.admin.get("/load", token))
            ready = status == HTTPStatus.OK and bool(load["ready"])
            pod.says(load)
            if ready and not pod.ready:
                pod.breaker = Breaker()  # it was away: what failed then says nothing of it now
            pod.ready = ready
            pod.misses = 0
        except EngineUnreachable:
            pod.ready = False
        except _UNHEARD:
            pod.misses += 1
            pod.ready = pod.ready and pod.misses < MISSES_ALLOWED

    async def _take_back(self, pod: RoutedPod, count: int, token: dict[str, str]) -> None:
        with contextlib.suppress(EngineUnreachable, *_UNHEARD):
            asked = pod.admin.post(f"/hand-back?requests={count}", token, b"{}")
            status, told = await _said(asked)
            if status == HTTPStatus.OK:
                self.handed_back += int(told["handed_back"])
                pod.queued -= int(told["handed_back"])


async def _said(asked: Awaitable[Exchange]) -> tuple[int, Any]:
    """Status and JSON of an admin port's answer; one of ``_UNHEARD``: it is none."""
    async with asyncio.timeout(LOOK_SECONDS):
        exchange = await asked
        try:
            return exchange.status, orjson.loads(await exchange.read_all(_MAX_LOAD_BYTES))
        finally:
            exchange.close()
