"""An operator that dies after any of its writes: the next one finishes what it began, once."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.custom_resources import pool, tenant, tier
from support.faulty_api_server import FaultyApiServer
from support.operator_cluster import QUICK, OperatorCluster, eventually
from tidegate_operator.controller import CHILDREN, Controller
from tidegate_operator.kinds import DEPLOYMENT, ROLE, ROLE_BINDING, SECRET, SERVING_POOL
from tidegate_operator.kube import Json, Kube, load_configuration
from tidegate_operator.metrics import Metrics
from tidegate_operator.names import POD_TEMPLATE_ANNOTATION, POOL_LABEL
from tidegate_operator.settings import Settings

pytestmark = pytest.mark.integration

MADE_ONCE = ("-admin", "-cache-salt", "-identity")
_GENERATION = re.compile(r'"generation":\d+')
"""Of a policy: begins with the time."""
_SERVERS = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation")


class Lives:
    """Operators one after the other, each until it has finished or was killed."""

    def __init__(
        self, cluster: OperatorCluster, server: FaultyApiServer, kubeconfig: Path, namespace: str
    ) -> None:
        self.cluster = cluster
        self.server = server
        self._kubeconfig = kubeconfig
        self._namespace = namespace
        self._settings = Settings(
            **(QUICK | {"resync_seconds": 1.0, "leader_election": False, "identity": "test"})
        )

    async def make(self, name: str) -> None:
        body = pool(name, namespace=self._namespace)
        del body["metadata"]["uid"], body["metadata"]["generation"]
        await self.cluster.kube.create(SERVING_POOL, body)

    async def end(self, name: str) -> None:
        """Delete the pool; its children are collected later."""
        obj = await self.cluster.get("ServingPool", name, self._namespace)
        assert obj is not None
        await self.cluster.kube.delete(SERVING_POOL, obj)

    async def one(self, name: str, writes: int = 0) -> list[str]:
        """What an operator wrote until the pool was in order, or until the n-th write killed it."""
        self.server.kill_after(writes)
        async with self._controller():
            try:
                what = f"{name}, killed after {writes}"
                await eventually(lambda: self._over(name), what, 60)
            except AssertionError as error:
                obj = await self.cluster.get("ServingPool", name, self._namespace)
                raise AssertionError(f"{error}; is {(obj or {}).get('status')}") from None
        return list(self.server.writes)

    @contextlib.asynccontextmanager
    async def _controller(self) -> AsyncIterator[None]:
        configuration = await load_configuration(str(self._kubeconfig))
        async with (
            Kube(configuration) as kube,
            Controller(kube, self._settings, Metrics()),
        ):
            yield

    async def _over(self, name: str) -> bool:
        if self.server.killed.is_set():
            return True
        found = await self.cluster.condition("ServingPool", name, self._namespace, "Ready")
        in_pools = [
            f"{self._namespace}/{name}" in ((obj or {}).get("status") or {}).get("pools", ())
            for obj in (
                await self.cluster.get("Tenant", "a", self._namespace),
                await self.cluster.get("TenantTier", "killed0"),
            )
        ]
        return found is not None and found[1] == "NoReadyPods" and all(in_pools)

    async def children(self, name: str) -> dict[str, Json]:
        """The pool's, without what the server adds and what is drawn by lot, in words of the spec
        of a pool called NAME."""
        found: dict[str, Json] = {}
        for kind in CHILDREN:
            objects = await self.cluster.kube.list(kind, self._namespace, f"{POOL_LABEL}={name}")
            for obj in objects:
                text = json.dumps(_told(obj)).replace(name, "NAME")
                short = obj["metadata"]["name"].replace(name, "NAME")
                found[f"{kind.name} {short}"] = json.loads(text)
        return found

    async def made_once(self, name: str) -> list[str]:
        """The secrets that are drawn by lot."""
        secrets = await self.cluster.kube.list(SECRET, self._namespace, f"{POOL_LABEL}={name}")
        return sorted(str(s["data"]) for s in secrets if s["metadata"]["name"].endswith(MADE_ONCE))


def _told(obj: Json) -> Json:
    made: Json = json.loads(json.dumps(obj))
    made.pop("status", None)
    for field in _SERVERS:
        made["metadata"].pop(field, None)
    for owner in made["metadata"]["ownerReferences"]:
        owner.pop("uid")
    for field in ("clusterIP", "clusterIPs"):
        made["spec"].pop(field, None) if "spec" in made else None
    # Compressed, so that names cannot be compared in it; what it keeps is compared as the template.
    if (made["metadata"].get("annotations") or {}).get(POD_TEMPLATE_ANNOTATION):
        made["metadata"]["annotations"][POD_TEMPLATE_ANNOTATION] = "kept"
    if "data" in made:
        by_lot = made["metadata"]["name"].endswith(MADE_ONCE)
        made["data"] = {
            file: "by lot" if by_lot else _GENERATION.sub("", base64.b64decode(value).decode())
            for file, value in made["data"].items()
        }
    return made


def of_children(writes: list[str], name: str) -> Counter[str]:
    return Counter(write.replace(name, "NAME") for write in writes if not write.endswith("/status"))


async def test_whatever_it_was_killed_after_the_next_one_finishes_the_same(
    cluster: OperatorCluster, namespace: str, tmp_path: Path
) -> None:
    await cluster.apply(tier("killed0"), tenant("a", "killed0", namespace=namespace))
    async with FaultyApiServer(cluster.kubeconfig_of_operator()) as server:
        kubeconfig = server.kubeconfig(tmp_path / "faulty.kubeconfig")
        lives = Lives(cluster, server, kubeconfig, namespace)
        await lives.make("whole")
        once = of_children(await lives.one("whole"), "whole")
        wanted: Any = await lives.children("whole")
        assert set(once.values()) == {1}
        of_router = (DEPLOYMENT, ROLE, ROLE_BINDING)
        kinds = {kind.name for kind in CHILDREN if kind not in of_router}
        assert {entry.split()[0] for entry in wanted} == kinds
        await lives.end("whole")
        for number in itertools.count(1):
            name = f"killed{number:02}"
            await lives.make(name)
            began = await lives.one(name, number)
            if not server.killed.is_set():  # how many statuses it writes is a matter of time
                assert number > once.total()
                break
            drawn = await lives.made_once(name)
            finished = await lives.one(name)
            assert await lives.children(name) == wanted, f"killed after {began[-1]}"
            written = of_children(began + finished, name)
            assert written == once, f"killed after {began[-1]}"
            assert set(drawn) <= set(await lives.made_once(name)), "no key was drawn anew"
            await lives.end(name)
