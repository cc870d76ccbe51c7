"""engine.podTemplate: what it merges, and what it may not say."""

from __future__ import annotations

from typing import Any

import pytest
from support.custom_resources import Json, pool
from tidegate_operator import api
from tidegate_operator.render import Children, render_children
from tidegate_operator.render.strategic_merge import at, merge


def children(template: Json | None, **engine: Any) -> Children:
    spec = {"image": "vllm/vllm-openai:v0.32.0", **engine}
    if template is not None:
        spec["podTemplate"] = template
    read = api.parse(api.ServingPool, pool(engine=spec))
    assert isinstance(read, api.ServingPool), read
    return render_children(read, "sidecar:1")


def merged(spec: Json, **engine: Any) -> Json:
    made = children({"spec": spec}, **engine)
    assert made.groups[0].conflicts == ()
    pod: Json = made.groups[0].stateful_set["spec"]["template"]["spec"]
    return pod


def conflicts(spec: Json, **engine: Any) -> list[str]:
    made = children({"spec": spec}, **engine)
    assert made.groups[0].stateful_set == children(None, **engine).groups[0].stateful_set
    return [str(conflict) for conflict in made.groups[0].conflicts]


def engine(**fields: Any) -> Json:
    return {"containers": [{"name": "engine", **fields}]}


def test_maps_merge_lists_merge_by_key_and_others_are_replaced() -> None:
    plain = merged({})
    pod = merged(
        {
            "dnsPolicy": "None",
            "tolerations": [{"operator": "Exists"}],
            "securityContext": {"runAsUser": 1000, "fsGroup": None},
            "initContainers": [{"name": "first", "image": "i:1"}],
            "containers": [
                {
                    "name": "engine",
                    "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
                    "volumeMounts": [{"mountPath": "/data", "name": "data"}],
                    "livenessProbe": {"periodSeconds": 30},
                    "resources": {"claims": [{"name": "gpu"}]},
                },
                {"name": "third", "image": "t:1"},
            ],
            "volumes": [
                {"name": "shared-memory", "emptyDir": {"sizeLimit": "8Gi"}},
                {"name": "engine-tmp", "$patch": "replace", "hostPath": {"path": "/tmp"}},
                {"name": "data", "emptyDir": {}},
            ],
        }
    )
    assert pod["dnsPolicy"] == "None"
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["securityContext"]["runAsUser"] == 1000
    assert "fsGroup" not in pod["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert [c["name"] for c in pod["containers"]] == ["engine", "sidecar", "third"]
    first, before = pod["containers"][0], plain["containers"][0]
    assert first["env"] == before["env"] + [
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}
    ]
    assert first["livenessProbe"] == before["livenessProbe"] | {"periodSeconds": 30}
    assert first["volumeMounts"][:-1] == before["volumeMounts"]
    assert at(pod, "volumes[shared-memory]") == {
        "name": "shared-memory",
        "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"},
    }
    assert at(pod, "volumes[engine-tmp]") == {"name": "engine-tmp", "hostPath": {"path": "/tmp"}}
    assert [v["name"] for v in plain["volumes"]] + ["data"] == [v["name"] for v in pod["volumes"]]


def test_labels_and_annotations_of_the_pods() -> None:
    made = children({"metadata": {"labels": {"team": "x"}, "annotations": {"a": "b"}}})
    metadata = made.groups[0].stateful_set["spec"]["template"]["metadata"]
    assert metadata["labels"]["team"] == "x"
    assert metadata["labels"]["tidegate.io/pool"] == "chat"
    assert metadata["annotations"]["a"] == "b"
    assert "team" not in made.groups[0].stateful_set["spec"]["selector"]["matchLabels"]


@pytest.mark.parametrize("empty", [{}, {"spec": {}}, {"metadata": {}}])
def test_an_empty_template_is_none(empty: Json) -> None:
    assert children(empty) == children(None)


def test_an_item_can_be_taken_away() -> None:
    pod = merged(
        {"volumes": [{"name": "shared-memory", "$patch": "delete"}]}
        | engine(volumeMounts=[{"mountPath": "/dev/shm", "$patch": "delete"}])
    )
    assert at(pod, "volumes[shared-memory]") is None
    assert at(pod, "containers[engine].volumeMounts[/dev/shm]") is None
    assert at(pod, "containers[engine].volumeMounts[/tmp]")


OWNED: dict[str, tuple[Json, str, str]] = {
    "image": (engine(image="x:1"), "containers[engine].image", "use spec.engine.image"),
    "arguments": (engine(args=["--x"]), "containers[engine].args", "use spec.engine.args"),
    "command": (engine(command=["sh"]), "containers[engine].command", "use spec.engine.args"),
    "GPUs": (
        engine(resources={"limits": {"nvidia.com/gpu": 4}}),
        "containers[engine].resources.limits.nvidia.com/gpu",
        "use spec.engine.resources",
    ),
    "start": (
        engine(startupProbe={"failureThreshold": 9}),
        "containers[engine].startupProbe.failureThreshold",
        "use spec.engine.startupTimeout",
    ),
    "probe": (
        engine(livenessProbe={"httpGet": {"path": "/x"}}),
        "containers[engine].livenessProbe.httpGet.path",
        "not what they ask",
    ),
    "hook": (
        engine(lifecycle={"preStop": None}),
        "containers[engine].lifecycle.preStop",
        "use spec.engine.drainTimeout",
    ),
    "our variable": (
        engine(env=[{"name": "VLLM_API_KEY", "value": "x"}]),
        "containers[engine].env[VLLM_API_KEY].name",
        "use spec.engine.env",
    ),
    "the pool's variable": (
        engine(env=[{"name": "A", "value": "2"}]),
        "containers[engine].env[A].value",
        "use spec.engine.env",
    ),
    "the operator's variable": (
        engine(env=[{"name": "HF_HOME", "$patch": "delete"}]),
        "containers[engine].env[HF_HOME]",
        "use spec.engine.env",
    ),
    "sidecar's address": (
        {"containers": [{"name": "sidecar", "env": [{"name": "POD_IP", "value": "x"}]}]},
        "containers[sidecar].env[POD_IP].value",
        "remove it",
    ),
    "the engine taken away": (
        engine(**{"$patch": "delete"}),
        "containers[engine]",
        "it holds what the operator sets",
    ),
    "the engine replaced": (
        engine(**{"$patch": "replace"}, image="x"),
        "containers[engine]",
        "it holds what the operator sets",
    ),
    "all containers taken away": ({"containers": None}, "containers", "it holds what"),
    "mount of the cache": (
        engine(volumeMounts=[{"mountPath": "/cache", "name": "mine"}]),
        "containers[engine].volumeMounts[/cache].name",
        "use spec.model.cache",
    ),
    "mount of the socket": (
        engine(volumeMounts=[{"mountPath": "/run/tidegate", "$patch": "delete"}]),
        "containers[engine].volumeMounts[/run/tidegate]",
        "remove it",
    ),
    "volume of the cache": (
        {"volumes": [{"name": "cache", "hostPath": {"path": "/x"}}]},
        "volumes[cache].hostPath.path",
        "use spec.model.cache",
    ),
    "volume of the policy": (
        {"volumes": [{"name": "policy", "$patch": "delete"}]},
        "volumes[policy]",
        "remove it",
    ),
    "volume of the routers' keys": (
        {"volumes": [{"name": "identity", "$patch": "delete"}]},
        "volumes[identity]",
        "remove it",
    ),
    "sidecar's image": (
        {"containers": [{"name": "sidecar", "image": "x"}]},
        "containers[sidecar].image",
        "use spec.sidecar.image",
    ),
    "sidecar's ports": (
        {"containers": [{"name": "sidecar", "ports": [{"containerPort": 8000, "name": "x"}]}]},
        "containers[sidecar].ports[8000].name",
        "remove it",
    ),
    "account": (
        {"serviceAccountName": "x"},
        "serviceAccountName",
        "use spec.engine.serviceAccountName",
    ),
    "grace": (
        {"terminationGracePeriodSeconds": 1},
        "terminationGracePeriodSeconds",
        "use spec.engine.drainTimeout",
    ),
    "host name": ({"hostname": "x"}, "hostname", "the StatefulSet sets it"),
    "set in both places": (
        {"nodeSelector": {"disk": "slow"}},
        "nodeSelector.disk",
        "spec.engine.nodeSelector is set already",
    ),
    "item without its key": ({"volumes": [{"emptyDir": {}}]}, "volumes[0]", "needs name"),
    "directive of a client": (
        {"$setElementOrder/containers": []},
        "$setElementOrder/containers",
        "is no directive",
    ),
}


@pytest.mark.parametrize(("spec", "path", "said"), OWNED.values(), ids=OWNED)
def test_what_is_ours_is_a_conflict_that_names_field_and_cure(
    spec: Json, path: str, said: str
) -> None:
    env = [{"name": "A", "value": "1"}]
    found = conflicts(spec, nodeSelector={"disk": "fast"}, env=env)
    assert found
    assert any(f.startswith(f"spec.engine.podTemplate.spec.{path}: ") and said in f for f in found)


def test_saying_what_is_rendered_anyway_is_no_conflict() -> None:
    same = {"restartPolicy": None, "serviceAccountName": "chat"}
    assert merged(same | engine(image="vllm/vllm-openai:v0.32.0")) == merged({})


def test_what_the_pool_left_open_may_be_said() -> None:
    pod = merged({"nodeSelector": {"a": "b"}, "priorityClassName": "p"})
    assert (pod["nodeSelector"], pod["priorityClassName"]) == ({"a": "b"}, "p")


def test_merge_changes_neither_side() -> None:
    base, patch = {"a": {"b": 1}, "env": [{"name": "x", "value": "1"}]}, {"a": {"c": [1]}}
    made = merge(base, patch)
    made["a"]["c"].append(2)
    assert base == {"a": {"b": 1}, "env": [{"name": "x", "value": "1"}]}
    assert patch == {"a": {"c": [1]}}
