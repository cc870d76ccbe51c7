"""What pods shall be: asked of a real API server before, kept when refused, restored by resync."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.custom_resources import Json, pool, tenant, tier
from support.operator_cluster import OperatorCluster, eventually
from tidegate_operator import reconcile
from tidegate_operator.kinds import POD
from tidegate_operator.kube import Kube, load_configuration
from tidegate_operator.names import POD_TEMPLATE_ANNOTATION
from tidegate_operator.render import Children, render_children

pytestmark = pytest.mark.integration

ENGINE = {"image": "vllm/vllm-openai:v0.32.0"}


async def kubectl(cluster: OperatorCluster, *arguments: str, stdin: str | None = None) -> str:
    done = await asyncio.to_thread(cluster.plane.kubectl, *arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def apply_pool(cluster: OperatorCluster, namespace: str, name: str, **spec: Any) -> None:
    """A pool of one tier with one tenant, or a change of it."""
    await cluster.apply(
        tier(name),
        tenant("a", name, namespace=namespace),
        pool(namespace=namespace, tiers=[{"name": name}], **spec),
    )


async def stateful_set(cluster: OperatorCluster, namespace: str) -> Json:
    found = await cluster.get("StatefulSet", "chat", namespace)
    assert found is not None
    return found


async def test_refused_pods_replace_nothing_and_come_once_they_are_accepted(
    cluster: OperatorCluster, namespace: str
) -> None:
    """A PriorityClass that is missing, pod security, an unknown field: each would fail only when
    the old pods are gone."""
    await apply_pool(cluster, namespace, "refused0")
    refusals: dict[str, tuple[Json, str]] = {
        "class": ({"priorityClassName": "r-class"}, "no PriorityClass with name r-class was found"),
        "account": ({"serviceAccountName": "nobody"}, 'serviceaccount "nobody" not found'),
        "security": ({"podTemplate": {"spec": {"hostNetwork": True}}}, "violates PodSecurity"),
        "field": ({"podTemplate": {"spec": {"hostNetwrok": True}}}, 'unknown field "spec.hostNetw'),
        "value": (
            {"podTemplate": {"spec": {"containers": [{"name": "more"}]}}},
            "spec.containers[2].image: Required value",
        ),
    }
    async with cluster.operator(), cluster.pods(namespace) as pods:
        await cluster.condition_becomes("ServingPool", "chat", namespace, "Ready", "True")
        before, uids = await stateful_set(cluster, namespace), set(pods.sidecars)
        for fields, said in refusals.values():
            await apply_pool(cluster, namespace, "refused0", engine=ENGINE | fields)

            async def told(said: str = said) -> bool:
                found = await cluster.condition("ServingPool", "chat", namespace, "Accepted")
                return found is not None and found[1] == "PodRefused" and said in found[2]

            await eventually(told, said)
            await cluster.condition_becomes(
                "ServingPool", "chat", namespace, "Ready", "False", "PodRefused"
            )
            after = await stateful_set(cluster, namespace)
            assert after["spec"] == before["spec"]
        image = {"containers": [{"name": "engine", "image": "other:1"}]}
        gpus = {"parallelism": {"tensor": 2}, "resources": {"limits": {"nvidia.com/gpu": 3}}}
        conflicting = ENGINE | gpus | {"podTemplate": {"spec": image}}
        await apply_pool(cluster, namespace, "refused0", engine=conflicting)
        text = await cluster.condition_becomes(
            "ServingPool", "chat", namespace, "Accepted", "False", "PodTemplateConflict"
        )
        assert "spec.engine.podTemplate.spec.containers[engine].image" in text
        assert "use spec.engine.image" in text
        assert (await stateful_set(cluster, namespace))["spec"] == before["spec"]
        text = await cluster.condition_becomes(
            "ServingPool", "chat", namespace, "GPUMismatch", "True", "GPUsIdle"
        )
        assert "asks for 3 nvidia.com/gpu, but the engine uses 2, so 1 idle in each pod" in text
        # The pool goes on being served and scaled meanwhile.
        await apply_pool(
            cluster, namespace, "refused0", engine=ENGINE | refusals["class"][0], replicas=2
        )

        async def scaled() -> bool:
            return int((await stateful_set(cluster, namespace))["spec"]["replicas"]) == 2

        await eventually(scaled, "two replicas of the pods that work")
        now = await stateful_set(cluster, namespace)
        assert now["spec"]["template"] == before["spec"]["template"]
        assert uids <= set(pods.sidecars)
        made = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 7}
        made["metadata"] = {"name": "r-class"}
        await kubectl(cluster, "apply", "-f", "-", stdin=json.dumps(made))
        try:

            async def taken() -> bool:
                spec = (await stateful_set(cluster, namespace))["spec"]["template"]["spec"]
                return bool(spec.get("priorityClassName") == "r-class")

            await eventually(taken, "what was missing came", 90)
            await cluster.condition_becomes("ServingPool", "chat", namespace, "Accepted", "True")
            assert await cluster.condition("ServingPool", "chat", namespace, "GPUMismatch") is None
        finally:
            await kubectl(cluster, "delete", "priorityclass", "r-class")


async def test_everything_that_can_be_said_of_pods_settles(
    cluster: OperatorCluster, namespace: str
) -> None:
    """O16, O20: with all fields set, oddly spelt, quiet is quiet; undone, they are gone."""
    engine = ENGINE | {
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"operator": "Exists"}, {"key": "a", "value": "b"}],
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]
            }
        },
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
        "imagePullSecrets": [{"name": "registry"}],
        "serviceAccountName": "default",
        "podTemplate": {
            "metadata": {"annotations": {"example.com/a": "b"}},
            "spec": {
                "dnsConfig": {"options": [{"name": "ndots", "value": "1"}]},
                "volumes": [{"name": "shared-memory", "emptyDir": {"sizeLimit": "0.5Gi"}}],
                "containers": [
                    {
                        "name": "sidecar",
                        "livenessProbe": {"periodSeconds": 30},
                        "volumeMounts": [{"mountPath": "/extra", "name": "extra"}],
                    },
                    {
                        "name": "third",
                        "image": "busybox",
                        "ports": [{"containerPort": 9000}],
                        "resources": {"requests": {"cpu": "1000m"}},
                        "securityContext": {
                            "allowPrivilegeEscalation": False,
                            "capabilities": {"drop": ["ALL"]},
                        },
                    },
                ],
            },
        },
    }
    engine["podTemplate"]["spec"]["volumes"].append({"name": "extra", "emptyDir": {}})
    source = {"huggingFace": {"repo": "acme/tiny"}}
    cache = {"volumeClaimTemplate": {"size": "0.5Gi", "whenScaled": "Delete"}}
    model = {"name": "tiny", "source": source, "cache": cache}
    await apply_pool(cluster, namespace, "settle0", engine=engine, model=model)
    async with cluster.operator(), cluster.pods(namespace):
        await cluster.condition_becomes("ServingPool", "chat", namespace, "Ready", "True")
        found = await stateful_set(cluster, namespace)
        pod = found["spec"]["template"]["spec"]
        assert pod["serviceAccountName"] == "default"
        assert await cluster.get("ServiceAccount", "chat", namespace) is None
        assert found["spec"]["persistentVolumeClaimRetentionPolicy"]["whenScaled"] == "Delete"
        await cluster.quiet()
        smaller = {"volumeClaimTemplate": {"size": "0.25Gi"}}
        await apply_pool(
            cluster, namespace, "settle0", engine=ENGINE, model=model | {"cache": smaller}
        )
        text = await cluster.condition_becomes(
            "ServingPool", "chat", namespace, "Progressing", "False", "ImmutableFieldChange"
        )
        assert "spec.model.cache.volumeClaimTemplate.size" in text

        async def undone() -> bool:
            after = await stateful_set(cluster, namespace)
            spec = after["spec"]["template"]["spec"]
            retention = after["spec"]["persistentVolumeClaimRetentionPolicy"]
            gone = {"nodeSelector", "tolerations", "affinity", "imagePullSecrets", "dnsConfig"}
            return not gone & spec.keys() and retention["whenScaled"] == "Retain"

        await eventually(undone, "what is no longer said is gone, and R9 taken back")
        assert await cluster.get("ServiceAccount", "chat", namespace)
        await cluster.quiet()
        # O18's way out: made anew around its pods.
        uids = await pod_uids(cluster, namespace)
        await kubectl(cluster, "delete", "statefulset", "chat", "-n", namespace, "--cascade=orphan")

        async def anew() -> bool:
            after = await cluster.get("StatefulSet", "chat", namespace)
            claims = after["spec"]["volumeClaimTemplates"] if after else [None]
            storage = claims[0] and claims[0]["spec"]["resources"]["requests"]["storage"]
            return storage == "256Mi"

        await eventually(anew, "the StatefulSet with the new claims")
        await cluster.condition_becomes("ServingPool", "chat", namespace, "Ready", "True")
        assert await pod_uids(cluster, namespace) == uids


async def pod_uids(cluster: OperatorCluster, namespace: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in await cluster.kube.list(POD, namespace)}


async def test_an_upgrade_that_renders_pods_otherwise_restarts_none(
    cluster: OperatorCluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what its owners change arrives all the same."""

    def newer(*arguments: Any) -> Children:
        made = render_children(*arguments)
        template = made.groups[0].stateful_set["spec"]["template"]
        template["spec"]["containers"][0]["env"].append({"name": "OF_A_NEWER_ONE", "value": "1"})
        return made

    await apply_pool(cluster, namespace, "newer0")
    async with cluster.pods(namespace) as pods:
        async with cluster.operator():
            await cluster.condition_becomes("ServingPool", "chat", namespace, "Ready", "True")
            await cluster.condition_becomes(
                "ServingPool", "chat", namespace, "PolicyApplied", "True"
            )
        before, uids = await stateful_set(cluster, namespace), set(pods.sidecars)
        monkeypatch.setattr(reconcile, "render_children", newer)
        async with cluster.operator():
            text = await cluster.condition_becomes(
                "ServingPool", "chat", namespace, "UpgradeAvailable", "True"
            )
            assert POD_TEMPLATE_ANNOTATION in text
            (sidecar,) = pods.sidecars.values()
            generation = sidecar.generation
            await cluster.apply(tier("newer0", priority=5))
            await eventually(lambda: sidecar.generation > generation, "the tier's edit")
            await kubectl(cluster, "set", "image", "statefulset/chat", "engine=x", "-n", namespace)

            async def mended() -> bool:
                return (await stateful_set(cluster, namespace))["spec"] == before["spec"]

            await eventually(mended, "a hand's change is undone, to what ran")
            await cluster.quiet()
            await kubectl(
                cluster,
                "annotate",
                "statefulset/chat",
                "-n",
                namespace,
                f"{POD_TEMPLATE_ANNOTATION}-",
            )

            async def taken() -> bool:
                pod = (await stateful_set(cluster, namespace))["spec"]["template"]["spec"]
                return any(e["name"] == "OF_A_NEWER_ONE" for e in pod["containers"][0]["env"])

            await eventually(taken, "the newer pods, once asked for")

            async def silent() -> bool:
                found = await cluster.condition(
                    "ServingPool", "chat", namespace, "UpgradeAvailable"
                )
                return found is None

            await eventually(silent, "nothing newer is left to tell of")
        assert uids


async def test_a_dry_run_tells_of_the_pod_and_of_nothing_else(
    cluster: OperatorCluster, namespace: str
) -> None:
    """A full quota says that pods are there, not that this one is wrong; a right that is missing
    says nothing at all."""
    context = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    closed = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    pod: Json = {
        "metadata": {"name": "check", "namespace": namespace},
        "spec": {
            "securityContext": context,
            "containers": [{"name": "c", "image": "i", "securityContext": closed}],
        },
    }
    assert await cluster.kube.refusal(pod) is None
    assert await cluster.kube.list(POD, namespace) == []
    wrong = {**pod, "spec": {**pod["spec"], "hostIPC": True}}
    assert "violates PodSecurity" in (await cluster.kube.refusal(wrong) or "")
    await kubectl(cluster, "create", "quota", "full", "--hard=pods=0", "-n", namespace)
    assert await cluster.kube.refusal(pod) is None
    counted = json.dumps({"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}})
    status = ("patch", "quota/full", "-n", namespace, "--subresource=status", "--type=merge")
    await kubectl(cluster, *status, f"--patch={counted}")
    assert await cluster.kube.refusal(pod) is None
    token = await kubectl(cluster, "create", "token", "default", "-n", namespace)
    configuration = await load_configuration(str(cluster.plane.kubeconfig))
    configuration.api_key["BearerToken"] = f"Bearer {token.strip()}"
    async with Kube(configuration) as without_rights:
        assert await without_rights.refusal(wrong) is None


def monitoring_kind(plural: str, kind: str) -> Json:
    """A kind of the Prometheus operator, with whatever fields."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [version | {"schema": {"openAPIV3Schema": schema}}],
        },
    }


MONITORING_KINDS = [
    monitoring_kind("podmonitors", "PodMonitor"),
    monitoring_kind("prometheusrules", "PrometheusRule"),
]


@contextlib.asynccontextmanager
async def monitoring_kinds(cluster: OperatorCluster) -> AsyncIterator[None]:
    """The cluster has the Prometheus operator's kinds meanwhile."""
    kinds = {"apiVersion": "v1", "kind": "List", "items": MONITORING_KINDS}
    await kubectl(cluster, "apply", "-f", "-", stdin=json.dumps(kinds))
    try:
        yield
    finally:
        names = [kind["metadata"]["name"] for kind in MONITORING_KINDS]
        await kubectl(cluster, "delete", "crd", *names)


async def rules_follow_the_promises(cluster: OperatorCluster, namespace: str, name: str) -> None:
    """A PrometheusRule while a tier is promised something, with the labels that are asked for."""
    assert await cluster.get("PrometheusRule", "chat", namespace) is None
    objectives = [{"metric": "TimeToFirstToken", "target": "500ms", "ratio": "99.5"}]
    await cluster.apply(tier(name, slo={"objectives": objectives}))
    await apply_labelled_pool(cluster, namespace, name, {"release": "prometheus"})

    async def rule() -> Json | None:
        return await cluster.get("PrometheusRule", "chat", namespace)

    async def labelled() -> bool:
        found = await rule()
        return bool(found and found["metadata"]["labels"].get("release") == "prometheus")

    await eventually(labelled, "a PrometheusRule with the label")
    found = await rule()
    assert found is not None
    alerts = [r for g in found["spec"]["groups"] for r in g["rules"] if "alert" in r]
    assert {alert["labels"]["severity"] for alert in alerts} == {"page", "ticket"}
    await apply_labelled_pool(cluster, namespace, name, None)

    async def unlabelled() -> bool:
        found = await rule()
        return bool(found and "release" not in found["metadata"]["labels"])

    await eventually(unlabelled, "the PrometheusRule without the label")
    await cluster.apply(tier(name))

    async def gone() -> bool:
        return await rule() is None

    await eventually(gone, "no PrometheusRule without a promise")


async def apply_labelled_pool(
    cluster: OperatorCluster, namespace: str, name: str, labels: dict[str, str] | None
) -> None:
    spec = {"observability": {"ruleLabels": labels}} if labels else {}
    await cluster.apply(pool(namespace=namespace, tiers=[{"name": name}], **spec))


async def test_children_that_guard_and_watch_the_pods(
    cluster: OperatorCluster, namespace: str
) -> None:
    """NetworkPolicy always, PodMonitor and PrometheusRule once there are such kinds; they come back
    when a hand was at them, and no pod cares."""
    await apply_pool(cluster, namespace, "guard0")
    async with cluster.operator(resync_seconds=2.0), cluster.pods(namespace) as pods:
        await cluster.condition_becomes("ServingPool", "chat", namespace, "Ready", "True")
        policy = await cluster.get("NetworkPolicy", "chat", namespace)
        assert policy is not None
        owner = policy["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["name"]) == ("ServingPool", "chat")
        await cluster.quiet()  # over a resync: a kind that is not there is not tried
        uids = set(pods.sidecars)
        await kubectl(
            cluster, "patch", "networkpolicy/chat", "-n", namespace, "-p", '{"spec":{"ingress":[]}}'
        )

        async def restored() -> bool:
            found = await cluster.get("NetworkPolicy", "chat", namespace)
            return bool(found and len(found["spec"].get("ingress") or ()) == 2)

        await eventually(restored, "the NetworkPolicy's rules")
        await kubectl(cluster, "delete", "networkpolicy/chat", "-n", namespace)
        await eventually(restored, "the NetworkPolicy")
        async with monitoring_kinds(cluster):

            async def watched() -> bool:
                found = await cluster.get("PodMonitor", "chat", namespace)
                return bool(found and len(found["spec"]["podMetricsEndpoints"]) == 2)

            await eventually(watched, "a PodMonitor, now that there is such a kind")
            await kubectl(cluster, "delete", "podmonitor/chat", "-n", namespace)
            await eventually(watched, "the PodMonitor again")
            await rules_follow_the_promises(cluster, namespace, "guard0")
        await cluster.condition_becomes("ServingPool", "chat", namespace, "Ready", "True")
        assert set(pods.sidecars) == uids
