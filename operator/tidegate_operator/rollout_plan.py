"""Which pods a workload of a pool is to ask for: the new ones, or those that run. Pure.

Theory of operation. Workloads are the StatefulSets of engines and the router's Deployment. A
changed pod template replaces every engine of the pool, which takes minutes of GPUs each. So it is
changed only for a reason that its owner gave, and only to one that works:

* **An upgrade restarts nothing.** A newer operator may render the same spec into another template.
  What was rendered when the *cold* part of the spec (model, engine, sidecar) last changed is kept
  in an annotation of the workload and applied again for as long as that part stays the same; a
  condition says that something newer is there, and how to take it.
* **What cannot work replaces nothing.** With a conflict in ``podTemplate``, or when the API server
  refuses such a pod (a dry run, asked before), the kept template stays in force; replicas and all
  else are still applied.
* **What cannot change is told** (fault O18). ``volumeClaimTemplates`` of a StatefulSet are
  immutable: those that it has stay, with the cache's volume that goes with them, the rest of the
  spec takes effect, and a condition names the field and the way out.

Everything is read from the live object, so a restarted or a second operator plans the same.
"""

from __future__ import annotations

import base64
import binascii
import copy
import hashlib
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.scheduling.contracts import FALLBACK_GROUP
from tidegate_operator.api.common import FieldError
from tidegate_operator.api.conditions import ConditionType, Reason
from tidegate_operator.findings import Fault, joined
from tidegate_operator.names import (
    MAIN_GROUP,
    POD_TEMPLATE_ANNOTATION,
    SIDECAR_IMAGE_ANNOTATION,
)
from tidegate_operator.quantity import amount
from tidegate_operator.render.engine import CACHE

Json = dict[str, Any]

COLD = ("model", "engine", "sidecar")
"""Fields of a pool's spec that the pod template is rendered from; of ``prefill`` chunkTokens too,
and of ``sharedState`` secretRef; of a group its draft, of the fallback its engine.
"""


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """What to apply, and what to ask before."""

    workload: Json | None
    """The StatefulSet or Deployment; unset: nothing can be applied, and nothing was before."""
    pod: Json | None = None
    """A pod of a template that never ran; if the API server refuses it, ``last_good`` applies."""
    last_good: Json | None = None
    faults: tuple[Fault, ...] = ()
    outdated: bool = False
    """The pods are as an earlier version of the operator rendered them."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """The template in force, and the digest of the spec that it was rendered from."""

    digest: str
    template: Json


def cold_digest(spec: Json, group: str = MAIN_GROUP) -> str:
    """Of the part of a pool's spec, as the API server has it, that makes the pods of an engine
    group what they are."""
    cold = {field: spec.get(field) for field in COLD}
    # Added only where it is set, so that the digests of other pools are what they always were.
    if chunk := (spec.get("prefill") or {}).get("chunkTokens"):
        cold["prefill"] = {"chunkTokens": chunk}
    if secret := (spec.get("sharedState") or {}).get("secretRef"):
        cold["sharedState"] = {"secretRef": secret}
    for entry in spec.get("engineGroups") or ():
        if entry["name"] == group and entry.get("draft"):
            cold["draft"] = entry["draft"]
    if group == FALLBACK_GROUP and (own := (spec.get("fallback") or {}).get("engine")):
        cold["fallback"] = own
    return hashlib.sha256(_canonical(cold).encode()).hexdigest()[:32]


def plan_rollout(
    rendered: Json,
    live: Json | None,
    conflicts: Sequence[FieldError],
    digest: str,
    needs: Callable[[Json], bool] | None = None,
) -> RolloutPlan:
    """Plan for the rendered workload over the one there is, if any. ``needs``
    says of a template whether it has what else the spec takes for granted; one that has not is
    replaced."""
    desired: Json = json.loads(json.dumps(rendered))
    kept = _kept(live)
    faults = [_conflict_fault(conflicts)] if conflicts else []
    if live is not None and (fault := _keep_claims(desired, live, kept)):
        faults.append(fault)
    if kept is None:
        if conflicts:
            return RolloutPlan(None, faults=tuple(faults))
        wanted = _with(desired, _Kept(digest, desired["spec"]["template"]), live)
        return RolloutPlan(wanted, _pod(desired), None, tuple(faults))
    last_good = _with(desired, kept, live)
    if conflicts:
        return RolloutPlan(last_good, faults=tuple(faults))
    template = desired["spec"]["template"]
    lacks = needs is not None and not needs(kept.template)
    if template == kept.template or digest != kept.digest or lacks:
        wanted = _with(desired, _Kept(digest, template), live)
        pod = _pod(desired) if template != kept.template else None
        return RolloutPlan(wanted, pod, last_good, tuple(faults))
    return RolloutPlan(last_good, faults=tuple(faults), outdated=True)


def running_sidecar_image(live: Json | None) -> str | None:
    """The sidecar image that the StatefulSet's pods have; None where there is none."""
    annotations = ((live or {}).get("metadata") or {}).get("annotations") or {}
    image = annotations.get(SIDECAR_IMAGE_ANNOTATION)
    return str(image) if image else None


def _conflict_fault(conflicts: Sequence[FieldError]) -> Fault:
    text = joined(map(str, conflicts))
    return Fault(
        ConditionType.ACCEPTED,
        Reason.POD_TEMPLATE_CONFLICT,
        f"{text}; until then the pods stay as they are",
    )


def _with(desired: Json, kept: _Kept, live: Json | None) -> Json:
    """The workload with this template, which it keeps."""
    made = copy.deepcopy(desired)
    made["spec"]["template"] = kept.template
    annotations = made["metadata"].setdefault("annotations", {})
    for container in kept.template["spec"]["containers"]:
        if container["name"] == "sidecar":
            annotations[SIDECAR_IMAGE_ANNOTATION] = container["image"]
    same = live is not None and _kept(live) == kept
    # Compression differs between versions of zlib; what says the same is not written again.
    annotations[POD_TEMPLATE_ANNOTATION] = _annotation(live) if same else _encoded(kept)
    return made


def _pod(workload: Json) -> Json:
    """A pod as the workload would make it."""
    metadata, spec = workload["metadata"], workload["spec"]
    pod: Json = copy.deepcopy(spec["template"])
    # A name of its own: a generated one would make each refusal read differently.
    pod["metadata"] |= {"name": f"{metadata['name']}-check", "namespace": metadata["namespace"]}
    for claim in spec.get("volumeClaimTemplates", ()):
        name = claim["metadata"]["name"]
        source = {"claimName": f"{name}-{metadata['name']}-0"}
        pod["spec"].setdefault("volumes", []).append(
            {"name": name, "persistentVolumeClaim": source}
        )
    return pod


# --- what cannot change


def _keep_claims(desired: Json, live: Json, kept: _Kept | None) -> Fault | None:
    """Put the live ``volumeClaimTemplates`` in place of the desired; a fault where they differ."""
    wanted = desired["spec"].pop("volumeClaimTemplates", [])
    had = live["spec"].get("volumeClaimTemplates") or []
    if had:
        desired["spec"]["volumeClaimTemplates"] = had
    field = _changed_field(wanted, had)
    if field is None:
        return None
    pod = desired["spec"]["template"]["spec"]
    old = (kept.template if kept else live["spec"]["template"])["spec"]
    pod["volumes"] = [v for v in pod["volumes"] if v["name"] != CACHE]
    pod["volumes"] += [v for v in old["volumes"] if v["name"] == CACHE]
    metadata = desired["metadata"]
    return Fault(
        ConditionType.PROGRESSING,
        Reason.IMMUTABLE_FIELD_CHANGE,
        f"spec.model.cache{field}: a StatefulSet cannot change the claims that it makes, so the "
        "cache stays as it was and all else takes effect; set it back, or let the StatefulSet be "
        f"made anew around its pods: kubectl delete statefulset {metadata['name']} -n "
        f"{metadata['namespace']} --cascade=orphan (claims that exist keep their size and class; "
        "enlarge those themselves)",
    )


def _changed_field(wanted: Sequence[Json], had: Sequence[Json]) -> str | None:
    """Below ``spec.model.cache``; None where both ask for the same."""
    if not wanted and not had:
        return None
    if not wanted or not had:
        return ".volumeClaimTemplate"
    new, old = wanted[0]["spec"], had[0]["spec"]
    size, old_size = (spec["resources"]["requests"]["storage"] for spec in (new, old))
    if amount(size) != amount(old_size):
        return ".volumeClaimTemplate.size"
    if new.get("storageClassName") != old.get("storageClassName"):
        return ".volumeClaimTemplate.storageClassName"
    if new["accessModes"] != old["accessModes"]:
        return ".volumeClaimTemplate.accessMode"
    return None


# --- what is kept


def _kept(live: Json | None) -> _Kept | None:
    """None where there is no workload, or what it keeps cannot be read (a hand was at it)."""
    try:
        document = json.loads(zlib.decompress(base64.b64decode(_annotation(live), validate=True)))
        kept = _Kept(document["digest"], document["template"])
        containers = kept.template["spec"]["containers"]
        return kept if isinstance(kept.digest, str) and isinstance(containers, list) else None
    except (ValueError, zlib.error, binascii.Error, KeyError, TypeError):
        return None


def _annotation(live: Json | None) -> str:
    annotations = ((live or {}).get("metadata") or {}).get("annotations") or {}
    return str(annotations.get(POD_TEMPLATE_ANNOTATION, ""))


def _encoded(kept: _Kept) -> str:
    document = _canonical({"digest": kept.digest, "template": kept.template})
    return base64.b64encode(zlib.compress(document.encode(), 9)).decode()


def _canonical(document: Json) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))
