"""Pods, each a sidecar before a faulty engine, behind a router, in the test's process."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
from support.fake_engine import until
from support.faulty_engine import FaultyEngine
from support.sidecar import (
    ALICE,
    BOB,
    KEYS,
    Json,
    SidecarUnderTest,
    chat_body,
    keys_document,
    policy_document,
    sidecar_under_test,
    write,
)
from tidegate_sidecar.router.pods import RoutedPod
from tidegate_sidecar.router.server import Router
from tidegate_sidecar.router.settings import RouterSettings

Pod = tuple[FaultyEngine, SidecarUnderTest]
SEATS = 4
"""Of each engine: the rest waits in its sidecar."""


class Fleet:
    """Pods behind one router, which knows those that :meth:`tell` told it of."""

    def __init__(
        self,
        folder: Path,
        pods: AsyncExitStack,
        edge: AsyncExitStack,
        policy: Json | None = None,
        keys: dict[str, str] = KEYS,
    ) -> None:
        """``policy``: of the router and, with :data:`SEATS`, of the pods; ``keys`` by tenant."""
        self.folder = folder
        self._policy = policy_document() if policy is None else policy
        self._keys = keys
        self.secrets = write_secrets(folder / "identity-keys", secrets.token_hex(32))
        self.pods: list[Pod] = []
        self.router: Router
        self.client: aiohttp.ClientSession
        self._pods = pods
        self._edge = edge

    async def add_pod(self, group: str = "main", **settings: Any) -> Pod:
        """One more pod, of an engine group; the router is not told yet."""
        engine = await self._pods.enter_async_context(FaultyEngine())
        folder = self.folder / f"pod-{len(self.pods)}"
        folder.mkdir()
        under_test = await self._pods.enter_async_context(
            sidecar_under_test(
                folder,
                engine,
                policy=self._policy | {"engine": {"max_num_seqs": SEATS}},
                keys=keys_document(keys=self._keys),
                identity_keys=self.secrets,
                engine_group=group,
                check_other=BOB in self._keys,
                **settings,
            )
        )
        self.pods.append((engine, under_test))
        return self.pods[-1]

    async def tell(self, *numbers: int) -> None:
        """The router's list names these pods, and it has seen them."""
        write_pods(self.folder, {f"pod-{number}": self.pods[number][1] for number in numbers})
        names = {f"pod-{number}" for number in numbers}
        router = self.router
        await until(lambda: {pod.name for pod in router.pods.pods if pod.ready} == names)

    async def start(self, **more: Any) -> None:
        settings = RouterSettings(
            policy=write(self.folder / "policy.json", self._policy),
            keys=write(self.folder / "keys.json", keys_document(keys=self._keys)),
            pods=write_pods(self.folder, {}),
            identity_keys=self.secrets,
            port=0,
            admin_port=0,
            **{"poll_seconds": 0.05, "leaving_seconds": 0.0, **more},
        )
        self.router = Router(settings)
        await self.router.start()
        self._edge.push_async_callback(self.router.stop)
        self.client = await self._edge.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )

    async def settled(self) -> None:
        """AssertionError unless the router has nothing in hand, after a moment at most."""
        router = self.router
        with contextlib.suppress(TimeoutError):
            await until(lambda: not (router.edge.in_hand or any(p.requests for p in self._known)))
        assert router.edge.in_hand == 0
        for pod in self._known:
            assert (pod.requests, pod.outstanding_tokens) == (0, 0)

    @property
    def _known(self) -> Collection[RoutedPod]:
        return self.router.pods.pods

    @property
    def url(self) -> str:
        """Of the router's chats."""
        return f"http://127.0.0.1:{self.router.port}/v1/chat/completions"

    def headers(self, tenant: str = ALICE) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._keys[tenant]}"}

    def chat(self, tenant: str = ALICE, **extra: Any) -> Any:
        return self.client.post(self.url, json=chat_body(**extra), headers=self.headers(tenant))

    async def models(self, tenant: str = ALICE) -> list[str]:
        url = f"http://127.0.0.1:{self.router.port}/v1/models"
        async with self.client.get(url, headers=self.headers(tenant)) as answer:
            assert answer.status == 200
            return [model["id"] for model in (await answer.json())["data"]]

    async def answered(self, **extra: Any) -> int:
        async with self.chat(**extra) as answer:
            await answer.read()
            return int(answer.status)


@contextlib.asynccontextmanager
async def router_before(
    folder: Path, pod: SidecarUnderTest, secrets: Path, **settings: Any
) -> AsyncIterator[Router]:
    """A router with the policy and the keys of the one pod behind it, which has served."""
    router = Router(
        RouterSettings(
            policy=pod.runtime.settings.policy,
            keys=pod.runtime.settings.keys,
            pods=write_pods(folder, {"pod": pod}),
            identity_keys=secrets,
            port=0,
            admin_port=0,
            **{"poll_seconds": 0.05, "leaving_seconds": 0.0, **settings},
        )
    )
    await router.start()
    try:
        await until(lambda: router.ready)
        yield router
    finally:
        await router.stop()


def write_pods(folder: Path, pods: Mapping[str, SidecarUnderTest]) -> Path:
    rows = [
        {
            "name": name,
            "address": pod.url,
            "admin_address": pod.admin_url,
            "group": pod.runtime.settings.engine_group,
        }
        for name, pod in pods.items()
    ]
    return write(folder / "pods.json", {"version": 1, "pods": rows})


def write_secrets(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines))
    return path
