"""The pool's ``engine.podTemplate`` merged over the rendered pods, and what it may not say. Pure.

What another field of the pool stands for, and what the engine and its sidecar need to find each
other, is the operator's own. A template that says otherwise is not obeyed in part: which half of it
its author would have wanted nobody knows, and each half would replace the pods. All of it waits,
and each conflict names the field and the cure. Saying what is rendered anyway is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tidegate_operator.api.common import FieldError
from tidegate_operator.api.engine import RESERVED_VARIABLES, EngineSpec
from tidegate_operator.api.pod_template import PodTemplate
from tidegate_operator.render.pod_scheduling import SCHEDULING_FIELDS
from tidegate_operator.render.strategic_merge import at, faults, merge, touched

Json = dict[str, Any]

_ROOT = "spec.engine.podTemplate"
_DRAIN = "use spec.engine.drainTimeout; the pods drain through it"
_PROBE = "the probes ask the sidecar; their times can be set, not what they ask"
_PLUMBING = "engine and sidecar need it as it is; remove it"
_SIDECAR_RESOURCES = "use spec.sidecar.resources"

_OWNED: tuple[tuple[str, str], ...] = (
    (r"spec\.serviceAccount(Name)?", "use spec.engine.serviceAccountName"),
    (r"spec\.terminationGracePeriodSeconds", _DRAIN),
    (r"spec\.(hostname|subdomain)", "the StatefulSet sets it; remove it"),
    (r"spec\.restartPolicy", "the pods of a StatefulSet always restart; remove it"),
    (r"spec\.containers\[engine\]\.image", "use spec.engine.image"),
    (r"spec\.containers\[engine\]\.(command|args)", "use spec.engine.args and spec.model"),
    (r"spec\.containers\[engine\]\.resources\.(limits|requests)\b.*", "use spec.engine.resources"),
    (r"spec\.containers\[engine\]\.startupProbe\b.*", "use spec.engine.startupTimeout"),
    (r"spec\.containers\[sidecar\]\.image", "use spec.sidecar.image"),
    (r"spec\.containers\[sidecar\]\.resources\.(limits|requests)\b.*", _SIDECAR_RESOURCES),
    (r"spec\.containers\[sidecar\]\.(command|args|ports|env\[POD_IP\])(\W.*)?", _PLUMBING),
    (r"spec\.containers\[(engine|sidecar)\]\.lifecycle\b.*", _DRAIN),
    (r"spec\.containers\[(engine|sidecar)\]\.\w+Probe\.(httpGet|exec|tcpSocket|grpc)\b.*", _PROBE),
    (r"spec\.(containers\[engine\]\.volumeMounts\[/cache\]|volumes\[cache\]).*",
     "use spec.model.cache"),
    (r"spec\.(containers\[(engine|sidecar)\]\.volumeMounts\[/model\]|volumes\[model\]).*",
     "use spec.model.source"),
    (r"spec\.containers\[(engine|sidecar)\]\.volumeMounts\[/(run|etc|opt)/tidegate\b.*",
     _PLUMBING),
    (r"spec\.volumes\[(socket|policy|admin|cache-salt|identity|state|shared-state|plugin)\].*",
     _PLUMBING),
    (r"spec\.initContainers\[plugin\](\.(image|command|args|volumeMounts)\b.*)?", _PLUMBING),
)  # fmt: skip
"""Patterns of whole paths, and what to do instead."""

_WHOLE = re.compile(
    r"spec|spec\.(containers|volumes|initContainers)"
    r"|spec\.containers\[(engine|sidecar)\](\.(env|volumeMounts|resources|\w+Probe))?"
)
"""Maps and lists that hold what is owned: they cannot be taken away or put in place of ours."""


def apply_template(rendered: Json, engine: EngineSpec) -> tuple[Json, tuple[FieldError, ...]]:
    """The pod template with ``engine.podTemplate`` merged over it, and the conflicts; with any of
    them the rendered one is returned as it is."""
    template = engine.pod_template
    if template is None:
        return rendered, ()
    patch = _as_json(template)
    found = [FieldError(path, text) for path, text in faults(patch, _ROOT)]
    if not found:
        found = list(_conflicts(rendered, patch, engine))
    return (rendered, tuple(found)) if found else (merge(rendered, patch), ())


def _as_json(template: PodTemplate) -> Json:
    given = template.metadata
    metadata = {
        "labels": given.labels if given else None,
        "annotations": given.annotations if given else None,
    }
    kept = {name: dict(value) for name, value in metadata.items() if value}
    patch: Json = {"metadata": kept} if kept else {}
    if template.spec:
        patch["spec"] = template.spec
    return patch


def _conflicts(rendered: Json, patch: Json, engine: EngineSpec) -> Iterator[FieldError]:
    spec = patch.get("spec") or {}
    own = at(rendered, "spec.containers[engine].env") or ()
    variables = {variable["name"] for variable in own} | {*RESERVED_VARIABLES}
    for path, value in touched({"spec": spec}, ""):
        path = path.removeprefix(".")
        advice = _advice(path, value, variables, engine)
        if advice and at(rendered, path) != value:
            yield FieldError(f"{_ROOT}.{path}", f"is the operator's own: {advice}")


def _advice(path: str, value: Any, variables: set[str], engine: EngineSpec) -> str | None:
    """What to use instead, where the path is not the template's to say."""
    if field := _scheduling_field(path, engine):
        return f"spec.engine.{field} is set already; write all of it there or all of it here"
    name = re.match(r"spec\.containers\[engine\]\.env\[(\w+)\]", path)
    if name and name[1] in variables:
        return "use spec.engine.env"
    for pattern, advice in _OWNED:
        if re.fullmatch(pattern, path):
            return advice
    if _WHOLE.fullmatch(path) and not isinstance(value, str | int):
        return "it holds what the operator sets; name in it only what shall differ"
    return None


def _scheduling_field(path: str, engine: EngineSpec) -> str | None:
    name = path.removeprefix("spec.").partition(".")[0].partition("[")[0]
    for field, attribute in SCHEDULING_FIELDS.items():
        if field == name and getattr(engine, attribute) is not None:
            return field
    return None
