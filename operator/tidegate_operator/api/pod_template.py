"""ServingPool's `engine.podTemplate`: what pods say beyond the fields that the pool has for it.

The schema knows its labels and annotations; the spec is kept as it is, whatever a later Kubernetes
adds to pods. What it may not say depends on what is rendered, so that is told by a condition (see
:mod:`tidegate_operator.render.pod_template`), and what Kubernetes itself refuses is found out
before it is applied.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import StringConstraints, WithJsonSchema

from tidegate_operator.api.common import LabelValue
from tidegate_operator.api.fields import ApiModel, described, rule

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "hostAliases": "ip",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
}
"""By the name of a list in a pod: the field by which its items are merged, as Kubernetes has it.
Lists that are not named here are replaced whole."""

OWN_LABELS = (
    "app.kubernetes.io/name",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/instance",
)
_KEYS_TEXT = ", ".join(f"{name} by {key}" for name, key in MERGE_KEYS.items())

UnknownFields = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]


class PodTemplateMetadata(ApiModel):
    """Labels and annotations of the pods."""

    labels: dict[str, LabelValue] | None = described(
        "Labels besides the operator's own.",
        unset="none",
        max_length=32,
        cel=[
            rule(
                "self.all(key, !key.startsWith('tidegate.io/') && !(key in "
                f"[{', '.join(repr(label) for label in OWN_LABELS)}]))",
                "labels tidegate.io/* and app.kubernetes.io/{name,managed-by,instance} are the "
                "operator's own, which finds the pods by them; use other keys",
            )
        ],
    )
    annotations: dict[str, Annotated[str, StringConstraints(max_length=4096)]] | None = described(
        "Annotations besides the operator's own.",
        unset="none",
        max_length=32,
        cel=[
            rule(
                "self.all(key, !key.startsWith('tidegate.io/'))",
                "annotations tidegate.io/* are the operator's own; use other keys",
            )
        ],
    )


class PodTemplate(ApiModel):
    """A part of a pod, merged over what the operator renders."""

    metadata: PodTemplateMetadata | None = described(
        "Labels and annotations of the pods.", unset="only the operator's own"
    )
    spec: UnknownFields | None = described(
        "Part of a pod's spec, of any field that the cluster knows. The containers are named "
        "engine and sidecar; others are added. Maps are merged by key, lists by a key of their "
        f"items ({_KEYS_TEXT}), all other lists are replaced. An item with `$patch: delete` takes "
        "that item away, with `$patch: replace` it is not merged. What another field of the pool "
        "says cannot be said here: Accepted turns False, names the field to use, and the pods "
        "stay as they are. So they do when the cluster refuses such a pod, which is asked (a dry "
        "run) before anything is replaced.",
        unset="as rendered",
        empty="as rendered",
    )
