"""What the operator believes: no change is lost, whoever else lists, writes or is refused."""

from __future__ import annotations

import asyncio
import copy
import time
from typing import Any

import pytest
from support.custom_resources import key_secret, tenant, tier
from tidegate_operator import world as world_module
from tidegate_operator.kinds import NAMESPACE, POD_MONITOR, SECRET, TENANT, TENANT_TIER, Kind
from tidegate_operator.kube import Forbidden, Json
from tidegate_operator.world import World


class Lister:
    """Answers LISTs from a table; the namespaces in ``forbidden`` are refused."""

    def __init__(self) -> None:
        self.objects: dict[Kind, list[Json]] = {}
        self.forbidden: set[str] = set()
        self.seconds = 0.0
        self.optional: set[Kind] = set()

    async def serves(self, kind: Kind) -> bool:
        return kind in self.optional

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


async def test_a_slow_list_does_not_put_the_next_one_off_for_long(
    lister: Lister, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world_module.LONGEST_PAUSE_SECONDS <= 2.0
    monkeypatch.setattr(world_module, "LONGEST_PAUSE_SECONDS", 0.1)
    lister.seconds = 0.5
    world = World(lister, ())  # type: ignore[arg-type]
    started = time.monotonic()
    await world.refresh()
    world.mark(TENANT)
    await world.refresh()
    # Two LISTs and the pause; four times the first LIST would be 2 s more.
    assert time.monotonic() - started < 2.5


async def test_a_namespace_without_rights_stops_no_other(lister: Lister) -> None:
    lister.objects[TENANT] = [tenant("x", "t0", namespace="a"), tenant("y", "t0", namespace="b")]
    other = {"metadata": {"name": "b", "uid": "b", "resourceVersion": "1"}}
    lister.objects[NAMESPACE].append(other)
    world = World(lister, ("a", "b"))  # type: ignore[arg-type]
    await world.refresh()
    assert set(world.judgement.tenants) == {"a/x", "b/y"}
    lister.forbidden.add("b")
    lister.objects[TENANT][0] = changed(lister.objects[TENANT][0], apiKeys=[])
    world.mark_all()
    await world.refresh()
    assert world.judgement.tenants["a/x"].digests == ()
    assert world.judgement.tenants["b/y"].digests, "a right that is missing revokes nothing"
    lister.objects[NAMESPACE].remove(other)
    for _ in range(2):
        world.mark_all()
        await world.refresh()
    assert set(world.judgement.tenants) == {"a/x"}, "what was in a deleted namespace is gone"


async def test_rights_in_no_namespace_are_an_error_that_keeps_the_mark(lister: Lister) -> None:
    world = World(lister, ("a",))  # type: ignore[arg-type]
    await world.refresh()
    lister.forbidden.add("a")
    world.mark(SECRET)
    with pytest.raises(Forbidden):
        await world.refresh()
    lister.forbidden.clear()
    secret = {"name": "s", "namespace": "a", "uid": "s", "resourceVersion": "1"}
    lister.objects[SECRET] = [{"metadata": secret}]
    await world.refresh()
    assert ("a", "s") in world.objects(SECRET)


async def test_a_secret_that_is_being_deleted_gives_no_key_any_more(lister: Lister) -> None:
    """One that a finalizer holds."""
    key = {"name": "main", "secretRef": {"name": "keys", "key": "k"}}
    lister.objects[TENANT] = [tenant("x", "t0", namespace="a", apiKeys=[key])]
    secret = key_secret("keys", {"k": "k" * 43}, namespace="a")
    secret["metadata"] |= {"uid": "s", "resourceVersion": "1"}
    lister.objects[SECRET] = [secret]
    world = World(lister, ())  # type: ignore[arg-type]
    await world.refresh()
    assert world.judgement.tenants["a/x"].digests
    secret["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.mark(SECRET)
    await world.refresh()
    assert world.judgement.tenants["a/x"].digests == ()


async def test_an_optional_kind_is_asked_for_at_each_resync(lister: Lister) -> None:
    world = World(lister, ())  # type: ignore[arg-type]
    await world.refresh()
    assert not world.serves(POD_MONITOR)
    lister.optional.add(POD_MONITOR)
    await world.refresh()
    assert not world.serves(POD_MONITOR)
    world.mark_all()
    await world.refresh()
    assert world.serves(POD_MONITOR)
