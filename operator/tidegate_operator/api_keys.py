"""From a Tenant's ``apiKeys`` to the SHA-256 digests by which sidecars know its requests.

A key that is given by its digest is taken as it is. A key in a Secret is read, checked and hashed
here and goes no further. Only Secrets with the label ``tidegate.io/api-keys`` are ever listed, so
that a missing Secret and one without the label look the same; the message says both cures.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegate_operator.api.common import API_KEYS_LABEL
from tidegate_operator.api.conditions import ConditionType, Reason
from tidegate_operator.api.tenant import ApiKey
from tidegate_operator.findings import Fault

KEY_BITS = 256
_SENDABLE = re.compile(r"[\x21-\x7e]+\Z")
_HEXADECIMAL = re.compile(r"(?:[0-9a-f]+|[0-9A-F]+)\Z")

SecretData = Mapping[str, str]
"""``data`` of a Secret: values in base64."""


@dataclass(frozen=True, slots=True)
class ResolvedKey:
    """One usable key of a tenant: its entry's name and its digest."""

    name: str
    digest: str


def resolve_keys(
    namespace: str, keys: Sequence[ApiKey], secrets: Mapping[tuple[str, str], SecretData]
) -> tuple[list[ResolvedKey], list[Fault]]:
    """The usable keys, and what is wrong with the others.

    ``secrets`` holds the labelled Secrets by (namespace, name).
    """
    resolved: list[ResolvedKey] = []
    faults: list[Fault] = []
    for key in keys:
        outcome = _resolve(namespace, key, secrets)
        if isinstance(outcome, Fault):
            faults.append(outcome)
        else:
            resolved.append(ResolvedKey(key.name, outcome))
    return resolved, faults


def _resolve(
    namespace: str, key: ApiKey, secrets: Mapping[tuple[str, str], SecretData]
) -> str | Fault:
    field = f"spec.apiKeys[{key.name}]"
    if key.secret_ref is None:
        assert key.sha256 is not None  # the model allows exactly one of the two
        return key.sha256
    ref = key.secret_ref
    data = secrets.get((namespace, ref.name))
    if data is None:
        return Fault(
            ConditionType.RESOLVED_REFS,
            Reason.SECRET_NOT_FOUND,
            f"{field}.secretRef: no Secret {ref.name} with the label {API_KEYS_LABEL} in namespace "
            f"{namespace}; create it, or: kubectl -n {namespace} label secret {ref.name} "
            f"{API_KEYS_LABEL}=true",
        )
    if ref.key not in data:
        return Fault(
            ConditionType.RESOLVED_REFS,
            Reason.SECRET_KEY_MISSING,
            f"{field}.secretRef: Secret {ref.name} has no key {ref.key}; add it, or name one of "
            f"its {len(data)} keys",
        )
    return _digest(data[ref.key], f"{field}.secretRef: key {ref.key} of Secret {ref.name}")


def _digest(encoded: str, where: str) -> str | Fault:
    """SHA-256 of the key, without the line break that files end with."""
    try:
        key = base64.b64decode(encoded, validate=True).decode("ascii").strip()
    except (binascii.Error, UnicodeDecodeError):
        key = ""
    if not _SENDABLE.match(key):
        return Fault(
            ConditionType.ACCEPTED,
            Reason.INVALID,
            f"{where} is empty or has characters that no HTTP header can carry; make one with "
            "`tidegate keys new`",
        )
    if _bits(key) < KEY_BITS:
        return Fault(
            ConditionType.ACCEPTED,
            Reason.KEY_TOO_SHORT,
            f"{where} has fewer than {KEY_BITS} bits; make one with `tidegate keys new`",
        )
    return hashlib.sha256(key.encode("ascii")).hexdigest()


def _bits(key: str) -> int:
    """The most entropy a random key of this length can have: 4 bits a hexadecimal digit, else 6."""
    return len(key) * (4 if _HEXADECIMAL.match(key) else 6)
