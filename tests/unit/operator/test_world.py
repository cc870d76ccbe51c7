"""What the operator believes: no change is lost, whoever else lists, writes or is refused."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from support.custom_resources import tenant, tier
from tidegate_operator.kube import NAMESPACE, TENANT, TENANT_TIER, Forbidden, Json, Kind
from tidegate_operator.world import World


class Lister:
    """Answers LISTs from a table; the namespaces in ``forbidden`` are refused."""

    def __init__(self) -> None:
        self.objects: dict[Kind, list[Json]] = {}
        self.forbidden: set[str] = set()
        self.seconds = 0.0

    async def list(
        self, kind: Kind, namespace: str | None = None, selector: str | None = None
    ) -> list[Json]:
        await asyncio.sleep(self.seconds)
        if namespace in self.forbidden:
            raise Forbidden(f"{namespace} is not yours")
        found = copy.deepcopy(self.objects.get(kind, []))
        return [o for o in found if namespace in (None, o["metadata"].get("namespace"))]


@pytest.fixture
def lister() -> Lister:
    made = Lister()
    made.objects[TENANT_TIER] = [tier("t0")]
    made.objects[NAMESPACE] = [{"metadata": {"name": "a", "uid": "a", "resourceVersion": "1"}}]
    return made


def changed(obj: Json, **spec: Any) -> Json:
    """The object after a user's next apply."""
    metadata = {**obj["metadata"], "generation": obj["metadata"]["generation"] + 1}
    return {**obj, "metadata": metadata, "spec": {**obj["spec"], **spec}}


async def test_a_key_removed_while_a_status_is_written_is_judged_away(lister: Lister) -> None:
    """R1-like: the answer to a status write already carries the spec that no LIST has shown."""
    before = tenant("x", "t0", namespace="a")
    lister.objects[TENANT] = [before]
    world = World(lister, ())  # type: ignore[arg-type]
    await world.refresh()
    assert world.judgement.tenants["a/x"].digests
    revoked = changed(before, apiKeys=[])
    lister.objects[TENANT] = [revoked]
    world.put(TENANT, copy.deepcopy(revoked) | {"status": {"queued": 1}})
    assert world.objects(TENANT)["a", "x"]["status"] == {"queued": 1}
    world.mark(TENANT)
    await world.refresh()
    assert world.judgement.tenants["a/x"].digests == ()
