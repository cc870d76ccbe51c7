"""A pool's router on a real API server: its children, the steps there and back, and its keys; what
a hand did to any of them is undone."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from support.custom_resources import Json, pool, tenant, tier
from support.operator_cluster import OperatorCluster, Pods, decoded, eventually
from tidegate_operator import routing
from tidegate_operator.kinds import KINDS
from tidegate_operator.render.router import RouterChildren

pytestmark = pytest.mark.integration

GROUPS = [{"name": "one", "tiers": ["routed"]}, {"name": "two"}]
CHILDREN = (
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "PodDisruptionBudget",
    "NetworkPolicy",
    "Deployment",
)
COMPONENT = "tidegate.io/component"


class Seen:
    """What there is of the pool `chat`."""

    def __init__(self, cluster: OperatorCluster, namespace: str, pods: Pods) -> None:
        self.cluster, self.namespace, self.pods = cluster, namespace, pods

    async def becomes(self, condition: str, *wanted: str) -> str:
        return await self.cluster.condition_becomes(
            "ServingPool", "chat", self.namespace, condition, *wanted
        )

    async def leads_to(self) -> str:
        service = await self.cluster.get("Service", "chat", self.namespace) or {}
        return str(service["spec"]["selector"][COMPONENT])

    async def of_router(self) -> set[str]:
        selector = f"{COMPONENT}=router,tidegate.io/pool=chat"
        found = set()
        for kind in CHILDREN:
            if await self.cluster.kube.list(KINDS[kind], self.namespace, selector):
                found.add(kind)
        return found

    async def of_groups(self) -> set[str]:
        found = await self.cluster.kube.list(
            KINDS["Service"], self.namespace, "tidegate.io/pool=chat"
        )
        return {service["metadata"]["name"] for service in found}

    async def tenants_port_open_to(self) -> list[Json] | None:
        policy = await self.cluster.get("NetworkPolicy", "chat", self.namespace) or {}
        tenants, _ = policy["spec"]["ingress"]
        found: list[Json] | None = tenants.get("from")
        return found

    async def keys(self) -> str:
        return decoded(await self.identity())["keys"]

    async def identity(self) -> Json:
        found = await self.cluster.get("Secret", "chat-identity", self.namespace)
        assert found is not None
        return found

    async def policies(self) -> dict[str, bool | None]:
        """Whether the policy that each pod runs says that the pool is routed."""
        told = {}
        for pod in await self.cluster.kube.list(KINDS["Pod"], self.namespace):
            sidecar = self.pods.sidecars.get(pod["metadata"]["uid"])
            bundle = sidecar.bundle if sidecar else None
            told[pod["metadata"]["name"]] = bundle.policy.routed if bundle else None
        return told


async def is_equal(found: Any, wanted: object) -> bool:
    return bool(await found == wanted)


async def test_a_router_comes_and_goes(
    cluster: OperatorCluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spec(**more: Any) -> Json:
        tiers = [{"name": "routed"}]
        return pool(namespace=namespace, tiers=tiers, replicas=2, engineGroups=GROUPS, **more)

    assert len(RouterChildren.__dataclass_fields__) == len(CHILDREN) + 1  # and the PodMonitor
    monkeypatch.setattr(routing, "SETTLE_SECONDS", 3.0)
    await cluster.apply(tier("routed"), tenant("a", "routed", namespace=namespace), spec())
    async with cluster.operator(), cluster.pods(namespace) as pods:
        seen = Seen(cluster, namespace, pods)
        await seen.becomes("Ready", "True", "Ready")
        await seen.becomes("GroupsNotRouted", "True", "NoRouter")
        before = set(await seen.policies())
        keys = await seen.keys()
        assert len(keys.splitlines()) == 2
        assert min(map(len, keys.splitlines())) >= 32

        await cluster.apply(spec(router={}))
        await seen.becomes("Routed", "True", "Routed")
        assert await seen.leads_to() == "router"
        assert await seen.of_router() == set(CHILDREN)

        async def all_told(routed: bool) -> bool:
            return set((await seen.policies()).values()) == {routed}

        await eventually(lambda: all_told(True), "all pods, of the router too, know it")
        routers = {
            "podSelector": {"matchLabels": {COMPONENT: "router", "tidegate.io/pool": "chat"}}
        }
        await eventually(lambda: is_equal(seen.tenants_port_open_to(), [routers]), "it is closed")
        await eventually(lambda: is_equal(seen.of_groups(), {"chat", "chat-engines"}), "no others")
        assert await cluster.condition("ServingPool", "chat", namespace, "GroupsNotRouted") is None
        assert before < set(await seen.policies())  # no engine's pod was replaced

        async def tenant_is_told() -> bool:
            status = (await cluster.get("Tenant", "a", namespace) or {})["status"]
            return bool(status["addresses"] == [f"http://chat.{namespace}.svc:8000"])

        await eventually(tenant_is_told, "the Tenant calls the router")

        # Without its certificate no router starts, and those that serve speak HTTP as before.
        async def addresses() -> list[str]:
            found = await cluster.get("ServingPool", "chat", namespace) or {}
            return list(found["status"]["addresses"])

        pods.ready = False
        await cluster.apply(spec(router={"tls": {"secretRef": {"name": "absent"}}}))
        await seen.becomes("ResolvedRefs", "False", "SecretNotFound")
        assert await addresses() == [f"http://chat.{namespace}.svc:8000"]
        pods.ready = True
        tls = [f"https://chat.{namespace}.svc:8000"]
        await eventually(lambda: is_equal(addresses(), tls), "routers with TLS serve")

        # A rotation is its owner's: what stands in the Secret stays.
        rotated = f"{keys}\n{'n' * 43}"
        secret = await seen.identity()
        secret["data"]["keys"] = base64.b64encode(rotated.encode()).decode()
        await cluster.kube.replace(KINDS["Secret"], secret)
        await cluster.apply(spec(router={"replicas": 1}))
        await eventually(lambda: router_replicas(cluster, namespace, 1), "one router is enough")
        assert await seen.keys() == rotated

        await cluster.apply(spec())
        await eventually(lambda: is_equal(seen.of_router(), set()), "nothing of it is left")
        assert await seen.leads_to() == "engine"
        assert await seen.tenants_port_open_to() is None
        await eventually(lambda: all_told(False), "all pods take clients themselves")
        await seen.becomes("GroupsNotRouted", "True", "NoRouter")
        assert await cluster.condition("ServingPool", "chat", namespace, "Routed") is None
        assert await seen.of_groups() == {"chat", "chat-engines", "chat-one", "chat-two"}
        assert before == set(await seen.policies())
        assert await seen.keys() == rotated


async def router_replicas(cluster: OperatorCluster, namespace: str, wanted: int) -> bool:
    deployment = await cluster.get("Deployment", "chat-router", namespace)
    return bool(deployment and deployment["status"].get("replicas") == wanted)


FOREVER_SECONDS = 3600.0
READ_SECRETS = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
EDITS: dict[tuple[str, str], list[Json]] = {
    ("Role", "chat-router"): [{"op": "add", "path": "/rules/-", "value": READ_SECRETS}],
    ("RoleBinding", "chat-router"): [
        {
            "op": "add",
            "path": "/subjects/-",
            "value": {"kind": "Group", "name": "all", "apiGroup": "rbac.authorization.k8s.io"},
        }
    ],
    ("ServiceAccount", "chat-router"): [
        {"op": "replace", "path": "/automountServiceAccountToken", "value": True}
    ],
    ("PodDisruptionBudget", "chat-router"): [
        {"op": "replace", "path": "/spec/maxUnavailable", "value": "100%"}
    ],
    ("NetworkPolicy", "chat-router"): [{"op": "add", "path": "/spec/ingress/-", "value": {}}],
    ("Deployment", "chat-router"): [
        {"op": "replace", "path": "/spec/replicas", "value": 0},
        {"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "evil:1"},
    ],
    ("Secret", "chat-cache-salt"): [{"op": "remove", "path": "/metadata/labels/tidegate.io~1pool"}],
    ("Secret", "chat-identity"): [{"op": "remove", "path": "/data/keys"}],
    ("Secret", "chat-admin"): [{"op": "replace", "path": "/data/token", "value": ""}],
}
DRAWN_ANEW = ("chat-admin", "chat-cache-salt")
"""Where they were deleted; the routers' keys come back, since pods that read new ones at different
times would refuse what others sign."""


class Hand:
    """Somebody with kubectl in the pool's namespace."""

    def __init__(self, cluster: OperatorCluster, namespace: str) -> None:
        self._cluster, self._namespace = cluster, namespace

    async def does(self, *arguments: str) -> None:
        kubectl = self._cluster.plane.kubectl
        done = await asyncio.to_thread(kubectl, *arguments, "-n", self._namespace)
        assert done.returncode == 0, done.stderr

    async def sees(self, kind: str, name: str, *, by_lot: bool = True) -> Json | None:
        """What the operator has to say in the object; without ``by_lot`` of what it drew only that
        it is there."""
        found = await self._cluster.get(kind, name, self._namespace)
        if found is None or found["metadata"].get("deletionTimestamp"):
            return None
        parts = ("spec", "rules", "roleRef", "subjects", "automountServiceAccountToken")
        told = {part: found.get(part) for part in parts}
        for file, value in (found.get("data") or {}).items():
            told[file] = value if by_lot else bool(value)
        return told | {field: found["metadata"][field] for field in ("labels", "ownerReferences")}


async def test_what_a_hand_changed_or_deleted_of_a_router_is_as_it_was(
    cluster: OperatorCluster, namespace: str
) -> None:
    """At once, by the events of each: no resync comes while the test lasts."""
    tiers = [{"name": "handled"}]
    await cluster.apply(
        tier("handled"),
        tenant("a", "handled", namespace=namespace),
        pool(namespace=namespace, tiers=tiers, router={"replicas": 1}),
    )
    hand = Hand(cluster, namespace)
    async with cluster.operator(resync_seconds=FOREVER_SECONDS), cluster.pods(namespace) as pods:
        seen = Seen(cluster, namespace, pods)
        await seen.becomes("Ready", "True", "Ready")
        await seen.becomes("Routed", "True", "Routed")
        assert set(CHILDREN) == {kind for kind, _ in EDITS} - {"Secret"}
        for (kind, name), edit in EDITS.items():
            # What follows from the child before would bring this one to be looked at.
            await cluster.quiet(0.5)
            drawn_anew = name in DRAWN_ANEW
            by_lot = name != "chat-admin"
            wanted = await hand.sees(kind, name, by_lot=by_lot)
            assert wanted is not None
            await hand.does("patch", kind, name, "--type=json", f"--patch={json.dumps(edit)}")
            await eventually(
                lambda: is_equal(hand.sees(kind, name, by_lot=by_lot), wanted),  # noqa: B023
                f"{kind} {name} is as it was before {edit}",
            )
            wanted = await hand.sees(kind, name, by_lot=not drawn_anew)
            await hand.does("delete", kind, name)
            await eventually(
                lambda: is_equal(hand.sees(kind, name, by_lot=not drawn_anew), wanted),  # noqa: B023
                f"{kind} {name} is there again",
            )
        await seen.becomes("Ready", "True", "Ready")
        await seen.becomes("Routed", "True", "Routed")


async def test_pods_that_know_only_the_admin_token_of_before_are_told_what_is_revoked(
    cluster: OperatorCluster, namespace: str
) -> None:
    """As all of them do for the minute that a kubelet takes."""
    await cluster.apply(
        tier("handled"),
        tenant("a", "handled", namespace=namespace),
        pool(namespace=namespace, tiers=[{"name": "handled"}], router={"replicas": 1}),
    )
    async with cluster.operator(), cluster.pods(namespace) as pods:
        seen = Seen(cluster, namespace, pods)
        await seen.becomes("Ready", "True", "Ready")
        await seen.becomes("Routed", "True", "Routed")

        async def token() -> str | None:
            found = await cluster.get("Secret", "chat-admin", namespace)
            return decoded(found)["token"] if found else None

        def holding(keys: int) -> bool:
            bundles = [sidecar.bundle for sidecar in pods.sidecars.values()]
            return all(bundle and len(bundle.keys.keys) == keys for bundle in bundles)

        await eventually(lambda: holding(1), "the tenant's key in all pods")
        old = await token()
        for sidecar in pods.sidecars.values():
            sidecar.knows = old
        await Hand(cluster, namespace).does("delete", "secret", "chat-admin")
        new = await eventually(token, "another token")
        assert new != old
        await cluster.apply(tenant("a", "handled", namespace=namespace, apiKeys=[]))
        await eventually(lambda: holding(0), "the revocation in all pods")
        for sidecar in pods.sidecars.values():
            sidecar.knows = new
        await cluster.apply(tenant("a", "handled", namespace=namespace))
        await eventually(lambda: holding(1), "the key again")
