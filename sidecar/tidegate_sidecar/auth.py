"""Which tenant an API key belongs to.

Keys are random 256-bit strings; only their SHA-256 is known here. The look-up is by digest: all
that could be timed is the comparison of a guess's hash with stored hashes, and whoever guesses
cannot steer a hash towards a stored one, so nothing about a key leaks. The scheme is
case-insensitive (RFC 9110, section 11.1).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidegate.scheduling.outcomes import Outcome
from tidegate_sidecar.errors import ApiError

_SHA256 = hashlib.sha256()
"""Of nothing; a copy spares looking the algorithm up for each request."""


class Identity(NamedTuple):
    """Who asks: the tenant, and the digest of the key used (what a revocation names)."""

    tenant: str
    key_sha256: str
    body_sha256: str | None = None
    """Of the one body that a router vouched for; unset: the client showed its key itself."""


def authenticate(authorization: Sequence[str], keys: Mapping[str, str]) -> Identity:
    """The identity behind the ``Authorization`` header values; else UNAUTHENTICATED."""
    if len(authorization) != 1:
        raise ApiError(Outcome.UNAUTHENTICATED)
    scheme, _, key = authorization[0].partition(" ")
    key = key.lstrip(" ")
    if scheme.lower() != "bearer" or not key:
        raise ApiError(Outcome.UNAUTHENTICATED)
    hashed = _SHA256.copy()
    hashed.update(key.encode("utf-8", "surrogateescape"))
    digest = hashed.hexdigest()
    tenant = keys.get(digest)
    if tenant is None:
        raise ApiError(Outcome.UNAUTHENTICATED)
    return Identity(tenant, digest)


def token_matches(authorization: Sequence[str], token: str) -> bool:
    """Whether the admin port's bearer token was presented."""
    if len(authorization) != 1:
        return False
    scheme, _, presented = authorization[0].partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(
        presented.strip().encode("utf-8", "surrogateescape"), token.encode()
    )
