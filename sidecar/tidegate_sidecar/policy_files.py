"""Policy and keys from files: one document each, or folders of shards as projected volumes show.

A kubelet replaces a volume's content by swapping the link ``..data``; a folder is therefore read
through the link's target, resolved once, so that no read mixes two contents. Shards of different
generations, or policy and keys of different ones, are refused whole.
"""

from __future__ import annotations

import os
from pathlib import Path

from tidegate.scheduling.contracts import (
    Bundle,
    ContractError,
    KeySet,
    Policy,
    loads,
    merge_key_shards,
    merge_shards,
)

Signature = tuple[tuple[str, int, int, int], ...]


def read_bundle(policy: Path, keys: Path) -> Bundle:
    """The whole policy and its keys; ContractError or OSError says which file and why."""
    policies = [loads(Policy, path.read_bytes(), path.name) for path in _documents(policy)]
    key_sets = [loads(KeySet, path.read_bytes(), path.name) for path in _documents(keys, "keys")]
    return Bundle(policy=merge_shards(policies), keys=merge_key_shards(key_sets))


def signature(policy: Path, keys: Path) -> Signature:
    """Changes when any of the documents does."""
    found = []
    for path in [*_documents(policy), *_documents(keys, "keys")]:
        stat = path.stat()
        found.append((str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(found)


def _documents(path: Path, prefix: str = "policy") -> list[Path]:
    if not path.is_dir():
        return [path]
    data = path / "..data"
    folder = Path(os.path.realpath(data)) if data.exists() else path
    found = sorted(folder.glob(f"{prefix}*.json"))
    if not found:
        raise ContractError(f"{path}: no {prefix}*.json in it")
    return found
