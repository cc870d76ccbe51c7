"""Whether an apply would change nothing, by managedFields as a real API server writes them."""

from __future__ import annotations

import copy

import pytest
from tidegate_operator.apply import in_sync
from tidegate_operator.kube import Json

DESIRED: Json = {
    "metadata": {"name": "x", "namespace": "n", "labels": {"a": "b"}},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"a": "b"}},
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "c",
                        "args": ["--x"],
                        "ports": [{"containerPort": 80}],
                        "resources": {"limits": {"cpu": "1000m", "memory": "0.5Gi"}},
                    }
                ],
                "volumes": [{"name": "v", "emptyDir": {}}],
            }
        },
    },
}
LIVE: Json = {
    "metadata": {
        "name": "x",
        "namespace": "n",
        "labels": {"a": "b", "foreign": "1"},
        "managedFields": [
            {"manager": "kubectl", "operation": "Apply", "fieldsV1": {"f:spec": {}}},
            {
                "manager": "tidegate-operator",
                "operation": "Update",
                "subresource": "status",
                "fieldsV1": {"f:status": {}},
            },
            {
                "manager": "tidegate-operator",
                "operation": "Apply",
                "fieldsV1": {
                    "f:metadata": {"f:labels": {"f:a": {}}},
                    "f:spec": {
                        "f:replicas": {},
                        "f:selector": {},
                        "f:template": {
                            "f:spec": {
                                "f:containers": {
                                    'k:{"name":"c"}': {
                                        ".": {},
                                        "f:name": {},
                                        "f:args": {},
                                        "f:ports": {
                                            'k:{"containerPort":80,"protocol":"TCP"}': {
                                                ".": {},
                                                "f:containerPort": {},
                                                "f:protocol": {},
                                            }
                                        },
                                        "f:resources": {"f:limits": {"f:cpu": {}, "f:memory": {}}},
                                    }
                                },
                                "f:volumes": {
                                    'k:{"name":"v"}': {
                                        ".": {},
                                        "f:name": {},
                                        "f:emptyDir": {},
                                    }
                                },
                            }
                        },
                    },
                },
            },
        ],
    },
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"a": "b"}},
        "template": {
            "metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}},
            "spec": {
                "containers": [
                    {
                        "name": "c",
                        "args": ["--x"],
                        "ports": [{"containerPort": 80, "protocol": "TCP"}],
                        "resources": {"limits": {"cpu": "1", "memory": "512Mi"}},
                        "imagePullPolicy": "Always",
                    },
                    {"name": "injected", "image": "i"},
                ],
                "volumes": [{"name": "v", "emptyDir": {}}],
                "dnsPolicy": "ClusterFirst",
            },
        },
    },
}


def changed(obj: Json, path: str, value: object) -> Json:
    copied = copy.deepcopy(obj)
    *parents, last = path.split(".")
    at = copied
    for part in parents:
        at = at[int(part)] if isinstance(at, list) else at[part]  # type: ignore[assignment]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return copied


def test_defaults_quantities_and_what_others_added_do_not_differ() -> None:
    assert in_sync(DESIRED, LIVE)


C = "spec.template.spec.containers.0"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.replicas", 3),
        ("metadata.labels.a", "c"),
        ("metadata.labels", {}),
        (f"{C}.args", ["--y"]),
        (f"{C}.args", ["--x", "--y"]),
        (f"{C}.resources.limits.cpu", "2"),
        (f"{C}.ports", []),
        ("spec.selector.matchLabels", {"a": "b", "c": "d"}),
        ("spec.template.spec.volumes", []),
        ("spec.template.spec.containers", []),
    ],
)
def test_what_a_hand_changed_differs(path: str, value: object) -> None:
    assert not in_sync(DESIRED, changed(LIVE, path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.replicas", None),
        ("spec.replicas", 1),
        ("spec.paused", True),
        ("metadata.labels", {"a": "b", "c": "d"}),
        (f"{C}.args", None),
        (f"{C}.env", [{"name": "E", "value": "1"}]),
        ("spec.template.spec.volumes", [{"name": "w", "emptyDir": {}}]),
    ],
)
def test_what_is_rendered_otherwise_differs(path: str, value: object) -> None:
    assert not in_sync(changed(DESIRED, path, value), LIVE)


def test_an_object_that_we_never_applied_differs() -> None:
    assert not in_sync(DESIRED, changed(LIVE, "metadata.managedFields", []))
