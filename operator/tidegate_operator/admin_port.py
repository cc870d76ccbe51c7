"""Requests to the admin ports of sidecars and routers: policy out, status back.

In bounded time, with the pool's token; who is asked when, and what follows from the answer, is the
link's (:mod:`tidegate_operator.sidecars`).

A token that changed is known to a pod only once its kubelet has brought the file, which takes about
a minute. Nothing that is revoked waits for that: who does not know the new one is asked with the
one before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp

from tidegate_operator.names import ADMIN_PORT
from tidegate_operator.pool_state import PodState

REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=5.0, sock_connect=1.5)


@dataclass(frozen=True, slots=True)
class Delivery:
    """What every sidecar of the pool should run."""

    generation: int
    bundle: bytes
    token: str


class Refused(Exception):
    """An answer that is not what was asked for."""


Ask = Callable[[dict[str, str]], AbstractAsyncContextManager[aiohttp.ClientResponse]]
"""Sends a request with these headers."""


class AdminPort:
    """Asks pods over a session; raises what that raises, and :class:`Refused`."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._token = ""
        self._token_before = ""

    async def put_policy(self, pod: PodState, delivery: Delivery) -> str | None:
        """Hand the policy over; why it does not take it, in its own words."""
        url, kind = f"{_address(pod)}/policy", {"Content-Type": "application/json"}
        status, body = await self._answer(
            lambda headers: self._session.put(url, data=delivery.bundle, headers=headers | kind),
            delivery.token,
        )
        if status == HTTPStatus.OK:
            return None
        return f"{status} {body.decode(errors='replace')[:300]}"

    async def put_pods(self, pod: PodState, delivery: Delivery, ready: int) -> None:
        """Tell it among how many pods it divides limits."""
        url = f"{_address(pod)}/pods?ready={ready}"
        status, _ = await self._answer(
            lambda headers: self._session.put(url, headers=headers), delivery.token
        )
        # An earlier version does not know the question, and counts as it always did.
        if status not in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
            raise Refused(f"PUT /pods: {status}")

    async def status(self, pod: PodState, delivery: Delivery) -> tuple[int, bytes]:
        """The code and body of its answer."""
        url = f"{_address(pod)}/status"
        return await self._answer(
            lambda headers: self._session.get(url, headers=headers), delivery.token
        )

    async def _answer(self, ask: Ask, token: str) -> tuple[int, bytes]:
        """The code and body of the answer to a request."""
        if token != self._token:
            self._token_before, self._token = self._token, token
        answered = await _answered(ask, token)
        if answered[0] == HTTPStatus.UNAUTHORIZED and self._token_before:
            answered = await _answered(ask, self._token_before)
        return answered


def version_in(body: bytes) -> int:
    """What a sidecar without a policy says that it reads; one that says nothing reads 1."""
    try:
        said = json.loads(body)
    except ValueError:
        return 1
    version = said.get("reads_policy") if isinstance(said, dict) else None
    return version if isinstance(version, int) and version > 0 else 1


def _address(pod: PodState) -> str:
    host = pod.ip or ""
    return f"http://[{host}]:{ADMIN_PORT}" if ":" in host else f"http://{host}:{ADMIN_PORT}"


async def _answered(ask: Ask, token: str) -> tuple[int, bytes]:
    async with ask({"Authorization": f"Bearer {token}"}) as response:
        return response.status, await response.read()
