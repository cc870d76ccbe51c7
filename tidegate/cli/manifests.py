"""Manifests to a policy: the operator's judge and compile, on files in the place of an API server.

Theory of operation: objects get what the server would give them (a namespace, a generation, a
label with its name for each namespace), are checked for fields that it would refuse, and go through
:mod:`tidegate_operator.judge` and :mod:`tidegate_operator.compile` unchanged. A pool is allowed to
serve other namespaces, which in a cluster is a setting of the operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from tidegate_operator import api
from tidegate_operator.api.common import parse
from tidegate_operator.api.conditions import ConditionStatus, ConditionType
from tidegate_operator.compile import CompiledPool, compile_pool
from tidegate_operator.engine_groups import Group, engine_groups
from tidegate_operator.judge import Judgement, judge
from tidegate_operator.shards import Previous

from tidegate.cli.errors import CommandError
from tidegate.cli.policy_files import GroupInput
from tidegate.scheduling.contracts import Policy, Task

Json = dict[str, Any]
Found = Mapping[str, Sequence[tuple[Path, Json]]]
"""File and object, by kind."""

TIER, TENANT, POOL, NAMESPACE, SECRET = (
    "TenantTier", "Tenant", "ServingPool", "Namespace", "Secret",
)  # fmt: skip
_MODELS: dict[str, type[BaseModel]] = {
    TIER: api.TenantTier,
    TENANT: api.Tenant,
    POOL: api.ServingPool,
}
_FIELDS = {"apiVersion", "kind", "metadata", "spec", "status"}
_METADATA = {
    "annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp",
    "finalizers", "generateName", "generation", "labels", "managedFields", "name", "namespace",
    "ownerReferences", "resourceVersion", "selfLink", "uid",
}  # fmt: skip
_DNS_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_NAME_LABEL = "kubernetes.io/metadata.name"
_DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class CompiledManifests:
    """One pool of the manifests, compiled."""

    policy: Policy
    digests: Mapping[str, str]
    gpus: int
    replicas: int
    groups: Mapping[str, GroupInput]
    notes: tuple[str, ...]


def compile_manifests(found: Found, pool_name: str | None) -> CompiledManifests:
    """Compile the pool of that name, or the only one that generates."""
    judgement = _completed(found)
    pool = _chosen(_pools(found), pool_name)
    compiled = _compiled(pool, judgement)
    faults = [fault.message for fault in compiled.faults]
    name = f"{pool.metadata.namespace}/{pool.metadata.name}"
    if compiled.policy is None or compiled.keys is None:
        raise _wrong(f"ServingPool {name}: {'; '.join(faults) or 'nothing to serve'}")
    return CompiledManifests(
        policy=compiled.policy,
        digests=compiled.keys.keys,
        gpus=_gpus(pool),
        replicas=pool.spec.replicas,
        groups=_groups(pool),
        notes=(
            *(f"ServingPool {name}: {message}" for message in faults),
            *_tenant_notes(judgement, compiled),
        ),
    )


def compiled_pools(
    found: Found, *, of_cluster: bool = False
) -> list[tuple[api.ServingPool, CompiledPool]]:
    """Every pool, compiled, by namespace and name. What a cluster has taken is not checked again:
    one object that this version cannot read stops no other."""
    judgement = _judged(found) if of_cluster else _completed(found)
    pools = sorted(_pools(found), key=lambda pool: (pool.metadata.namespace, pool.metadata.name))
    return [(pool, _compiled(pool, judgement)) for pool in pools]


def unreadable_pools(found: Found) -> Iterator[str]:
    """Namespace, name and fault of those that are not among :func:`compiled_pools`."""
    for _, obj in found.get(POOL, ()):
        if isinstance(faults := parse(api.ServingPool, obj), list):
            metadata = obj["metadata"]
            yield f"{metadata['namespace']}/{metadata['name']}: {'; '.join(map(str, faults))}"


def _compiled(pool: api.ServingPool, judgement: Judgement) -> CompiledPool:
    return compile_pool(pool, judgement, Previous(), may_share=True, now_seconds=1.0)


def _completed(found: Found) -> Judgement:
    """Judge the objects, once they are as the API server would have them."""
    for kind, model in _MODELS.items():
        for file, obj in found.get(kind, ()):
            _complete(file, obj, kind)
            _check(file, obj, model)
    for kind in (NAMESPACE, SECRET):
        for file, obj in found.get(kind, ()):
            _complete(file, obj, kind)
    _refuse_twins(found)
    return _judged(found)


def _complete(file: Path, obj: Json, kind: str) -> None:
    """What the API server would have added, or refused to add."""
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise _wrong(f"{file}: a {kind} without metadata.name")
    if _DNS_NAME.fullmatch(metadata["name"]) is None:
        raise _wrong(
            f"{file}: {kind} {metadata['name']!r}: metadata.name: expected lower-case letters, "
            "digits, - and ."
        )
    metadata.setdefault("generation", 1)
    if metadata.get("creationTimestamp") is not None:
        metadata["creationTimestamp"] = _server_time(file, metadata)
    if kind in (TENANT, POOL, SECRET):
        metadata.setdefault("namespace", _DEFAULT_NAMESPACE)


def _server_time(file: Path, metadata: Json) -> str:
    """As text with a time zone, as in the server's answers; unquoted, YAML reads it as a time."""
    given = metadata["creationTimestamp"]
    text = given.isoformat() if isinstance(given, date) else given
    try:
        time = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        where = f"{file}: {metadata['name']}: metadata.creationTimestamp"
        raise _wrong(f"{where}: expected a time such as 2026-11-30T10:00:00Z") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).isoformat()


def _check(file: Path, obj: Json, model: type[BaseModel]) -> None:
    where = f"{file}: {obj['kind']} {obj['metadata']['name']}"
    if "apiVersion" not in obj:
        raise _wrong(f"{where}: apiVersion: required")
    strange = [
        *(obj.keys() - _FIELDS),
        *(f"metadata.{name}" for name in obj["metadata"].keys() - _METADATA),
    ]
    unknown = next(iter(sorted(map(str, strange))), None)
    unknown = unknown or next(_unknown_fields(model, {"spec": obj.get("spec")}, ""), None)
    if unknown is not None:
        raise _wrong(f"{where}: unknown field {unknown}")
    parsed = parse(model, obj)  # type: ignore[type-var]
    if isinstance(parsed, list):
        raise _wrong(f"{where}: {'; '.join(map(str, parsed))}")


def _unknown_fields(kind: Any, value: Any, path: str) -> Iterator[str]:
    """Paths of fields that no model has, as ``kubectl apply`` would refuse them."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            for inner in get_args(kind):
                yield from _unknown_fields(inner, item, f"{path}[{index}]")
    elif isinstance(value, dict):
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            for inner in get_args(kind):
                yield from _unknown_fields(inner, value, path)
            return
        fields = {info.alias or name: info for name, info in kind.model_fields.items()}
        for name, item in value.items():
            where = f"{path}.{name}".removeprefix(".")
            if name not in fields:
                yield where
            else:
                yield from _unknown_fields(fields[name].annotation, item, where)


def _refuse_twins(found: Found) -> None:
    seen: dict[tuple[str, str, str], Path] = {}
    for kind in _MODELS:
        for file, obj in found.get(kind, ()):
            metadata = obj["metadata"]
            key = kind, metadata.get("namespace", ""), metadata["name"]
            if key in seen:
                name = "/".join(filter(None, key[1:]))
                raise _wrong(f"{file}: {kind} {name} stands in {seen[key]} too")
            seen[key] = file


def _judged(found: Found) -> Judgement:
    labels: dict[str, dict[str, str]] = {
        obj["metadata"]["namespace"]: {}
        for kind in (TENANT, POOL)
        for _, obj in found.get(kind, ())
    }
    for _, obj in found.get(NAMESPACE, ()):
        labels[obj["metadata"]["name"]] = _labels(obj)
    return judge(
        [obj for _, obj in found.get(TIER, ())],
        [obj for _, obj in found.get(TENANT, ())],
        {name: {_NAME_LABEL: name} | own for name, own in labels.items()},
        {
            (obj["metadata"]["namespace"], obj["metadata"]["name"]): obj.get("data") or {}
            for _, obj in found.get(SECRET, ())
        },
    )


def _labels(namespace: Json) -> dict[str, str]:
    metadata = namespace["metadata"]
    labels = metadata.get("labels") or {}
    if not isinstance(labels, dict) or not all(isinstance(one, str) for one in labels.values()):
        raise _wrong(f"Namespace {metadata['name']}: metadata.labels: expected strings by name")
    return labels


def _pools(found: Found) -> list[api.ServingPool]:
    if not any(found.get(kind) for kind in _MODELS):
        raise _wrong("no TenantTier, Tenant or ServingPool in these files")
    return [
        pool
        for _, obj in found.get(POOL, ())
        if isinstance(pool := parse(api.ServingPool, obj), api.ServingPool)
    ]


def _chosen(pools: Sequence[api.ServingPool], name: str | None) -> api.ServingPool:
    names = {f"{pool.metadata.namespace}/{pool.metadata.name}": pool for pool in pools}
    if name is not None:
        fitting = [pool for full, pool in names.items() if name in (full, pool.metadata.name)]
        if len(fitting) == 1:
            return fitting[0]
        what = "several pools are called" if fitting else "no ServingPool is called"
        raise _wrong(f"--pool: {what} {name!r}; there are {', '.join(names) or 'none'}")
    generating = [pool for pool in pools if pool.spec.model.task is not Task.EMBED]
    if len(generating) == 1:
        return generating[0]
    if generating:
        raise _wrong(f"--pool: needed, for there are {', '.join(names)}")
    raise _wrong("no ServingPool that generates text in these files")


def _gpus(pool: api.ServingPool) -> int:
    parallelism = pool.spec.engine.parallelism
    return (parallelism and parallelism.tensor) or 1


def _groups(pool: api.ServingPool) -> dict[str, GroupInput]:
    if not pool.spec.engine_groups:
        return {}
    return {one.name: GroupInput(one.replicas, _draft(one)) for one in engine_groups(pool)}


def _draft(group: Group) -> str | None:
    draft = group.draft
    return None if draft is None else f"{draft.method}, {draft.tokens} tokens"


def _tenant_notes(judgement: Judgement, compiled: CompiledPool) -> Iterator[str]:
    """Tenants that are not served, and why: their keys are of no matter here."""
    served = set(compiled.tenant_names)
    for name, verdict in judgement.tenants.items():
        if name in served or verdict.claim is not None:
            continue
        said = [
            finding.message
            for finding in verdict.findings
            if finding.status is ConditionStatus.FALSE and finding.type in _OF_A_CLAIM
        ]
        yield f"Tenant {name} is not served: {'; '.join(said)}"


_OF_A_CLAIM = (ConditionType.ACCEPTED, ConditionType.RESOLVED_REFS)


def _wrong(message: str) -> CommandError:
    return CommandError(message, exit_code=2)
