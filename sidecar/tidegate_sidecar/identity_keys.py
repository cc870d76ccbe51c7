"""Signing and checking what a router vouches for.

The key file holds a secret per line. The first signs, all of them verify: a rotation adds the new
one as a second line everywhere, then swaps them, then drops the old one, and no request is refused
in between. The file is read again whenever it changes.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
from collections.abc import Sequence
from pathlib import Path

from tidegate.scheduling.contracts import (
    SIGNED_IDENTITY_VERSION,
    ContractError,
    SignedIdentity,
    dumps,
    loads,
)
from tidegate.scheduling.outcomes import Outcome
from tidegate_sidecar.auth import Identity
from tidegate_sidecar.errors import ApiError
from tidegate_sidecar.flags import SettingsError

log = logging.getLogger("tidegate.sidecar")

IDENTITY_HEADER = "x-tidegate-identity"
STAYS_HEADER = "x-tidegate-stays"
"""Set by a router: the request has been handed back often enough, and waits where it is."""
WAITED_HEADER = "x-tidegate-waited-ms"
"""Set by a router: how long ago the request came, which was handed back since."""
LIFETIME_SECONDS = 30.0
"""From the signature to the sidecar: a hop, and what two clocks differ by."""
MIN_SECRET_BYTES = 32


class IdentityKeys:
    """The secrets of one key file."""

    def __init__(self, path: Path) -> None:
        """SettingsError or OSError: the file holds no secrets."""
        self._path = path
        self._signature = _signature(path)
        self._secrets = _read(path)

    def look(self) -> None:
        """Read the file again where it changed; one that cannot be read leaves the last good."""
        try:
            if (signature := _signature(self._path)) != self._signature:
                self._signature = signature  # what is wrong with it is told once
                self._secrets = _read(self._path)
        except (OSError, SettingsError) as error:
            log.warning("identity keys not read anew: %s", error)

    async def follow(self, poll_seconds: float) -> None:
        """Look again and again."""
        while True:
            await asyncio.sleep(poll_seconds)
            self.look()

    def sign(self, identity: Identity, request_id: str, body: bytes, utc: float) -> str:
        """The header's value for one request."""
        vouched = SignedIdentity(
            version=SIGNED_IDENTITY_VERSION,
            tenant=identity.tenant,
            key_sha256=identity.key_sha256,
            request_id=request_id,
            body_sha256=hashlib.sha256(body).hexdigest(),
            expires_at=utc + LIFETIME_SECONDS,
        )
        payload = _encoded(dumps(vouched).encode())
        return f"{payload}.{_encoded(_mac(self._secrets[0], payload))}"

    def verified(self, values: Sequence[str], utc: float) -> SignedIdentity:
        """What the header's values vouch for; UNAUTHENTICATED where they do not."""
        payload, _, mac = values[0].partition(".") if len(values) == 1 else ("", "", "")
        shown = mac.encode("utf-8", "surrogateescape")  # a stranger's, of whatever characters
        right = (_encoded(_mac(secret, payload)).encode() for secret in self._secrets)
        if any(hmac.compare_digest(one, shown) for one in right):
            try:
                vouched = loads(SignedIdentity, _decoded(payload), "identity")
            except (ContractError, binascii.Error):
                pass  # another version of the router's: as unknown as a wrong key
            else:
                if utc <= vouched.expires_at <= utc + 2 * LIFETIME_SECONDS:
                    return vouched
        raise ApiError(Outcome.UNAUTHENTICATED, "This replica serves requests of its router only.")


def require_body(identity: Identity, body: bytes) -> None:
    """UNAUTHENTICATED where a router vouched for another body."""
    wanted = identity.body_sha256
    if wanted is not None and hashlib.sha256(body).hexdigest() != wanted:
        raise ApiError(Outcome.UNAUTHENTICATED, "The body is not the one that was signed for.")


def _mac(secret: bytes, payload: str) -> bytes:
    return hmac.digest(secret, payload.encode("utf-8", "surrogateescape"), "sha256")


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _signature(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _read(path: Path) -> tuple[bytes, ...]:
    secrets = tuple(line.strip() for line in path.read_bytes().splitlines() if line.strip())
    if not secrets or any(len(secret) < MIN_SECRET_BYTES for secret in secrets):
        raise SettingsError(
            f"{path}: expected a secret of at least {MIN_SECRET_BYTES} bytes a line"
        )
    return secrets
