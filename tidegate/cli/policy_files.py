"""What `tidegate simulate` is given: manifests or policy.json, read as the product would read them.

Manifests (TenantTier, Tenant, ServingPool and their Namespaces; other kinds are passed over) are
judged and compiled by the operator's own code, so that a simulation cannot be of another policy
than the one that would be rolled out. What the API server would do before (refusing unknown fields,
giving every object a namespace and a generation) is done here. What the operator would only report
in a condition becomes a note; what leaves nothing to simulate is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tidegate.cli.errors import CommandError
from tidegate.scheduling.contracts import ContractError, Policy, decode, merge_shards

Json = dict[str, Any]

_KUSTOMIZATION = "Kustomization"
_PLAIN_KUSTOMIZATION = {"apiVersion", "kind", "metadata", "resources"}
_SUFFIXES = {".yaml", ".yml", ".json"}
_MERGE = "tag:yaml.org,2002:merge"
_GROUP = "tidegate.io/"


@dataclass(frozen=True, slots=True)
class GroupInput:
    """What the manifests say of an engine group beside its policy."""

    replicas: int
    draft: str | None = None
    """How it drafts, in words; None: not at all."""


@dataclass(frozen=True, slots=True)
class PolicyInput:
    """A policy and what else its files say."""

    policy: Policy
    digests: Mapping[str, str] = field(default_factory=dict)
    """Tenant by the SHA-256 of its API key."""
    gpus: int | None = None
    """Of one engine; None: not said."""
    replicas: int = 1
    groups: Mapping[str, GroupInput] = field(default_factory=dict)
    """By name; empty: the pool has none, or a policy.json does not say."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Document:
    """One object of a file."""

    source: Path
    value: Json

    @property
    def kind(self) -> str:
        return str(self.value.get("kind", ""))

    @property
    def foreign(self) -> bool:
        """Of another API, which may well have a kind that is called Tenant, too."""
        version = str(self.value.get("apiVersion", ""))
        return "/" in version and not version.startswith(_GROUP) and self.kind != _KUSTOMIZATION


def read_policy(paths: Sequence[Path], pool: str | None) -> PolicyInput:
    """The policy that these files or folders make for a pool; unset: the only one that generates.

    :class:`CommandError` (exit code 2) says what is wrong with them.
    """
    documents = [document for path in paths for document in _documents(path)]
    policies = [document for document in documents if "kind" not in document.value]
    if not policies:
        return _compiled(documents, pool)
    if len(policies) < len(documents):
        other = next(document for document in documents if "kind" in document.value)
        raise _wrong(
            f"{policies[0].source} is a policy and {other.source} a manifest; give one or the other"
        )
    if pool is not None:
        raise _wrong("--pool: a policy is of one pool; leave it out")
    try:
        return PolicyInput(merge_shards([_decoded(document) for document in policies]))
    except ContractError as error:
        raise _wrong(f"{', '.join(str(one.source) for one in policies)}: {error}") from None


def read_manifests(paths: Sequence[Path]) -> Mapping[str, Sequence[tuple[Path, Json]]]:
    """File and object of every manifest in these files or folders, by kind."""
    return _by_kind(document for path in paths for document in _documents(path))


def _decoded(document: _Document) -> Policy:
    try:
        return decode(Policy, document.value, "policy")
    except ContractError as error:
        hint = "" if "tiers" in document.value else " (nor is it a manifest: it has no kind)"
        raise _wrong(f"{document.source}: {error}{hint}") from None


def _documents(path: Path) -> Iterator[_Document]:
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES)
        if not files:
            raise _wrong(f"{path}: holds no .yaml, .yml or .json file")
    for file in files:
        for value in _loaded(file):
            yield from _objects(file, value)


def _objects(file: Path, value: Any) -> Iterator[_Document]:
    """The object, or those of a List."""
    if value is None:
        return
    if not isinstance(value, dict):
        raise _wrong(f"{file}: expected an object, got {type(value).__name__}")
    items = value.get("items")
    if str(value.get("kind", "")).endswith("List") and isinstance(items, list):
        for item in items:
            yield from _objects(file, item)
    else:
        yield _Document(file, value)


class _NoTwins(yaml.SafeLoader):
    """Refuses what YAML would pass over and ``kubectl apply`` would not: a key given twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
            if name in seen and key.tag != _MERGE:
                raise yaml.MarkedYAMLError(
                    problem=f"{key.value!r} is given twice", problem_mark=key.start_mark
                )
            if name is not None:
                seen.add(name)
        return super().construct_mapping(node, deep=deep)


def _loaded(file: Path) -> list[Any]:
    try:
        return list(yaml.load_all(file.read_text(encoding="utf-8-sig"), Loader=_NoTwins))
    except OSError as error:
        raise _wrong(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _wrong(f"{file}: not UTF-8 text") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
        raise _wrong(f"{where}: {error.problem}") from None
    except (yaml.YAMLError, RecursionError, ValueError, LookupError, TypeError, AttributeError):
        raise _wrong(f"{file}: not YAML") from None


def _wrong(message: str) -> CommandError:
    return CommandError(message, exit_code=2)


def _compiled(documents: Sequence[_Document], pool: str | None) -> PolicyInput:
    """Compile manifests; imports the operator, which a policy.json does without."""
    try:
        from tidegate.cli import manifests
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tidegate."):
            raise
        raise CommandError(
            f"reading manifests needs {error.name}: install it with "
            "pip install 'tidegate[simulator,operator]', or give a policy.json"
        ) from None
    by_kind = _by_kind(documents)
    found = manifests.compile_manifests(by_kind, pool)
    notes = (*_kustomization_notes(by_kind.get(_KUSTOMIZATION, [])), *found.notes)
    return PolicyInput(found.policy, found.digests, found.gpus, found.replicas, found.groups, notes)


def _by_kind(documents: Iterable[_Document]) -> dict[str, list[tuple[Path, Json]]]:
    by_kind: dict[str, list[tuple[Path, Json]]] = {}
    for document in documents:
        if not document.foreign:
            by_kind.setdefault(document.kind, []).append((document.source, document.value))
    return by_kind


def _kustomization_notes(found: Iterable[tuple[Path, Json]]) -> list[str]:
    return [
        f"{file}: {', '.join(sorted(extra))} not applied; give the output of "
        f"`kubectl kustomize {file.parent}` instead"
        for file, value in found
        if (extra := value.keys() - _PLAIN_KUSTOMIZATION)
    ]
