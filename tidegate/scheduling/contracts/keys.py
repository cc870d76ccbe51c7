"""``keys.json``: which tenant an API key belongs to, by the key's SHA-256 (never the key)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tidegate.scheduling.contracts.codec import ContractError, described
from tidegate.scheduling.contracts.policy import Policy, Shard, complete_set

KEYS_VERSION = 1
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True)
class KeySet:
    """The API keys of a pool's tenants."""

    version: int = described("Version of this contract.", low=KEYS_VERSION, high=KEYS_VERSION)
    generation: int = described("The generation of the policy it belongs to.", low=0)
    keys: Mapping[str, str] = described(
        "Lower-case hexadecimal SHA-256 of the key -> the tenant's namespace/name.",
        default_factory=dict,
    )
    shard: Shard | None = described("Unset: the document is whole.", default=None)

    def __post_init__(self) -> None:
        for digest in self.keys:
            if not _SHA256.match(digest):
                raise ContractError("keys: a name is not 64 lower-case hexadecimal digits")


def merge_key_shards(shards: Sequence[KeySet]) -> KeySet:
    """The keys of a complete set of shards; ContractError where it is mixed or has gaps."""
    ordered = complete_set(shards, "key shards")
    merged: dict[str, str] = {}
    for each in ordered:
        merged.update(each.keys)
    return replace(ordered[0], keys=merged, shard=None)


@dataclass(frozen=True, slots=True)
class Bundle:
    """Policy and keys of one generation, as posted to ``PUT /policy`` of the admin port."""

    policy: Policy = described("The policy.")
    keys: KeySet = described("The keys of its tenants.")

    def __post_init__(self) -> None:
        if self.policy.generation != self.keys.generation:
            raise ContractError(
                f"policy has generation {self.policy.generation}, "
                f"keys have generation {self.keys.generation}"
            )
