"""The scheduling fields of ``engine`` as a pod has them: under the same names, with the pool's own
pods where a selector was left out."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from tidegate_operator.api.engine import EngineSpec

Json = dict[str, Any]

SCHEDULING_FIELDS = {
    "nodeSelector": "node_selector",
    "tolerations": "tolerations",
    "affinity": "affinity",
    "topologySpreadConstraints": "topology_spread_constraints",
    "priorityClassName": "priority_class_name",
    "runtimeClassName": "runtime_class_name",
    "imagePullSecrets": "image_pull_secrets",
}
"""By their name in a pod, in the order in which they are rendered: the attribute of the model."""


def scheduling_fields(engine: EngineSpec, own_pods: dict[str, str]) -> Json:
    """What is set of them; ``own_pods`` are the labels of the pool's engine pods."""
    given = {name: _as_json(getattr(engine, at)) for name, at in SCHEDULING_FIELDS.items()}
    fields = {name: value for name, value in given.items() if value}
    selector = {"matchLabels": own_pods}
    for constraint in fields.get("topologySpreadConstraints", ()):
        constraint.setdefault("labelSelector", selector)
    for term in _pod_terms(fields.get("affinity", {})):
        term.setdefault("labelSelector", selector)
    return fields


def _as_json(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(by_alias=True, exclude_none=True, mode="json")
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    return dict(value) if isinstance(value, dict) else value


def _pod_terms(affinity: Json) -> list[Json]:
    terms: list[Json] = []
    for side in ("podAffinity", "podAntiAffinity"):
        rules = affinity.get(side, {})
        terms += rules.get("requiredDuringSchedulingIgnoredDuringExecution", [])
        preferred = rules.get("preferredDuringSchedulingIgnoredDuringExecution", [])
        terms += [entry["podAffinityTerm"] for entry in preferred]
    return terms
