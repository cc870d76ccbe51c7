"""Where engine pods may run: the scheduling fields of a pod, under the names that a pod has.

They are handed to the pods as they are. What a pod can say beyond them goes through
``engine.podTemplate``. Two departures from a bare pod: a topology spread constraint or a term of
affinity without ``labelSelector`` selects nothing there, which helps nobody; here it selects the
pool's own engine pods.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from tidegate_operator.api.common import LabelKey, LabelSelector, LabelValue
from tidegate_operator.api.fields import ApiModel, ItemName, ObjectName, described, rule, rules

OWN_PODS = "the engine pods of this pool"

PreferenceWeight = Annotated[int, Field(ge=1, le=100)]


class TolerationOperator(StrEnum):
    """How a taint's value is compared."""

    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(StrEnum):
    """What a taint does to pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Toleration(ApiModel):
    """A taint of nodes that the pods bear."""

    model_config = rules(
        rule(
            "has(self.key) || (has(self.operator) && self.operator == 'Exists')",
            "without a key, which stands for all taints, operator must be Exists",
        ),
        rule(
            "!has(self.value) || size(self.value) == 0 "
            "|| !has(self.operator) || self.operator == 'Equal'",
            "value is for the operator Equal",
            field_path=".value",
        ),
        rule(
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "tolerationSeconds is for the effect NoExecute",
            field_path=".tolerationSeconds",
        ),
    )

    key: LabelKey | None = described("Key of the taint.", unset="any, with the operator Exists")
    operator: TolerationOperator | None = described(
        "Equal: the taint has this value. Exists: whatever its value.", unset="Equal"
    )
    value: LabelValue | None = described("Value of the taint.", unset="the empty one")
    effect: TaintEffect | None = described("Effect of the taint.", unset="all of them")
    toleration_seconds: int | None = described(
        "How long the pods stay after such a taint came.",
        unset="for ever",
        zero="they go at once",
        ge=0,
        le=31_536_000,
    )


class NodeOperator(StrEnum):
    """How a label of a node is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GREATER = "Gt"
    LESS = "Lt"


class NodeRequirement(ApiModel):
    """One condition on a label of nodes."""

    model_config = rules(
        rule(
            "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 "
            ": self.operator in ['Gt', 'Lt'] ? has(self.values) && size(self.values) == 1 "
            ": !has(self.values) || size(self.values) == 0",
            "In and NotIn need at least one of values, Gt and Lt exactly one, the others none",
        )
    )

    key: LabelKey = described("Label key.")
    operator: NodeOperator = described(
        "In, NotIn, Gt and Lt compare with values; Exists and DoesNotExist ask only for the key."
    )
    values: list[LabelValue] | None = described(
        "Values; of Gt and Lt one integer.", unset="none", max_length=64, list_type="atomic"
    )


class NodeTerm(ApiModel):
    """Conditions on a node that must all hold."""

    match_expressions: list[NodeRequirement] = described(
        "The conditions.", min_length=1, max_length=16, list_type="atomic"
    )


class NodeSelector(ApiModel):
    """Nodes of which at least one term holds."""

    node_selector_terms: list[NodeTerm] = described(
        "One of them must hold.", min_length=1, max_length=16, list_type="atomic"
    )


class PreferredNode(ApiModel):
    """Nodes that are preferred."""

    weight: PreferenceWeight = described("How much it counts among the preferences.")
    preference: NodeTerm = described("What such a node looks like.")


class NodeAffinity(ApiModel):
    """Which nodes the pods may run on."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = described(
        "Only these nodes.", unset="all nodes"
    )
    preferred_during_scheduling_ignored_during_execution: list[PreferredNode] | None = described(
        "These nodes first.", unset="no preference", max_length=16, list_type="atomic"
    )


class PodTerm(ApiModel):
    """Pods that run in the same place."""

    label_selector: LabelSelector | None = described(
        "Which pods.", unset=OWN_PODS, empty="({}) all pods of those namespaces"
    )
    topology_key: LabelKey = described(
        "Label of nodes that makes a place: kubernetes.io/hostname a node, "
        "topology.kubernetes.io/zone a zone."
    )
    namespaces: list[ItemName] | None = described(
        "Namespaces of those pods.", unset="the pool's own", max_length=32, list_type="set"
    )
    namespace_selector: LabelSelector | None = described(
        "Namespaces of those pods by label, besides the list.",
        unset="only the list",
        empty="({}) all namespaces",
    )


class PreferredPods(ApiModel):
    """Places that are preferred."""

    weight: PreferenceWeight = described("How much it counts among the preferences.")
    pod_affinity_term: PodTerm = described("Which pods run there.")


class PodAffinity(ApiModel):
    """Places by the pods that run there."""

    required_during_scheduling_ignored_during_execution: list[PodTerm] | None = described(
        "All of these must hold.", unset="none", max_length=16, list_type="atomic"
    )
    preferred_during_scheduling_ignored_during_execution: list[PreferredPods] | None = described(
        "The more of these, the better.", unset="no preference", max_length=16, list_type="atomic"
    )


class Affinity(ApiModel):
    """Which nodes, and near which pods, the pods may run."""

    node_affinity: NodeAffinity | None = described("By labels of nodes.", unset="all nodes")
    pod_affinity: PodAffinity | None = described(
        "Only or rather where such pods run.", unset="anywhere"
    )
    pod_anti_affinity: PodAffinity | None = described(
        "Not or rather not where such pods run.", unset="anywhere"
    )


class Unsatisfiable(StrEnum):
    """What happens to a pod that would tip the balance."""

    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


class TopologySpread(ApiModel):
    """How evenly pods are spread over places."""

    model_config = rules(
        rule(
            "!has(self.minDomains) || self.whenUnsatisfiable == 'DoNotSchedule'",
            "minDomains is for whenUnsatisfiable: DoNotSchedule",
            field_path=".minDomains",
        )
    )

    max_skew: int = described(
        "By how many pods two places may differ.",
        ge=1,
        le=1000,
    )
    topology_key: LabelKey = described(
        "Label of nodes that makes a place: kubernetes.io/hostname a node, "
        "topology.kubernetes.io/zone a zone."
    )
    when_unsatisfiable: Unsatisfiable = described(
        "DoNotSchedule: the pod waits. ScheduleAnyway: it is only a preference."
    )
    label_selector: LabelSelector | None = described(
        "Which pods count.", unset=OWN_PODS, empty="({}) all pods of the namespace"
    )
    min_domains: int | None = described(
        "Fewer places than this count as if there were one more that is empty.",
        unset="1",
        ge=1,
        le=1000,
    )
    match_label_keys: list[LabelKey] | None = described(
        "Only pods count that have the same values of these labels as the pod to place, such as "
        "controller-revision-hash.",
        unset="none",
        max_length=8,
        list_type="atomic",
    )


class ImagePullSecret(ApiModel):
    """A Secret with credentials of a registry."""

    name: ObjectName = described("Name of the Secret, in the pool's namespace.")
