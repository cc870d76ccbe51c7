"""Requests to the admin ports of sidecars and routers: policy out, status back.

One request each, in bounded time, with the pool's token; who is asked when, and what follows from
the answer, is the link's (:mod:`tidegate_operator.sidecars`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

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


class AdminPort:
    """Asks pods over a session; raises what that raises, and :class:`Refused`."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def put_policy(self, pod: PodState, delivery: Delivery) -> str | None:
        """Hand the policy over; why it does not take it, in its own words."""
        async with self._session.put(
            f"{_address(pod)}/policy",
            data=delivery.bundle,
            headers=_headers(delivery) | {"Content-Type": "application/json"},
        ) as response:
            text = await response.text()
            return None if response.status == 200 else f"{response.status} {text[:300]}"

    async def put_pods(self, pod: PodState, delivery: Delivery, ready: int) -> None:
        """Tell it among how many pods it divides limits."""
        async with self._session.put(
            f"{_address(pod)}/pods?ready={ready}", headers=_headers(delivery)
        ) as response:
            await response.read()
        # An earlier version does not know the question, and counts as it always did.
        if response.status not in (200, 404):
            raise Refused(f"PUT /pods: {response.status}")

    async def status(self, pod: PodState, delivery: Delivery) -> tuple[int, bytes]:
        """The code and body of its answer."""
        async with self._session.get(
            f"{_address(pod)}/status", headers=_headers(delivery)
        ) as response:
            return response.status, await response.read()


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


def _headers(delivery: Delivery) -> dict[str, str]:
    return {"Authorization": f"Bearer {delivery.token}"}
