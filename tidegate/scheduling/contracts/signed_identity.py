"""What a router vouches for when it hands a request to a sidecar, in the header of each request.

On the wire: ``base64url(JSON) "." base64url(HMAC-SHA256 of what stands before the dot)``, without
padding. It binds the tenant to one body for a few seconds, so that who sees a header on the way can
serve nobody else with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.scheduling.contracts.codec import described

SIGNED_IDENTITY_VERSION = 1


@dataclass(frozen=True, slots=True)
class SignedIdentity:
    """Who asks, as the router found."""

    version: int = described(
        "Version of this contract.", low=SIGNED_IDENTITY_VERSION, high=SIGNED_IDENTITY_VERSION
    )
    tenant: str = described("The tenant's namespace/name.")
    key_sha256: str = described("Digest of the API key: what a revocation names.", secret=True)
    request_id: str = described("The request's id, the same in router and sidecar.", high=64)
    body_sha256: str = described("Digest of the body that it was signed for.")
    expires_at: float = described("Valid until then; seconds since the epoch.", low=0)
