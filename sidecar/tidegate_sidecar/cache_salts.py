"""What keeps tenants out of each other's prefix cache: a salt for each, sent with each request.

An engine answers faster where it has computed a prompt's beginning before; who shares the cache of
another can learn so what that one asked (NDSS 2025, "I Know What You Asked"). With a salt, blocks
are found only by those who send the same one. The salt is an HMAC of the scope that the policy
gives a tenant (its own UID, or a group that shares), so that knowing a scope is not knowing its
salt. The key stands in a file of its own and rotates with nothing else: another key is another
cache, and every first answer is slow again. Clients cannot send a salt (:mod:`.fields`).

Without a file the key is made anew with each start, and isolates all the same.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from pathlib import Path

from tidegate.scheduling.contracts import TenantPolicy
from tidegate_sidecar.flags import SettingsError

MIN_KEY_BYTES = 16


class CacheSalts:
    """The salts under one key; SettingsError where it is too short, OSError without the file."""

    def __init__(self, key_file: Path | None = None) -> None:
        key = secrets.token_bytes(32) if key_file is None else key_file.read_bytes().strip()
        if len(key) < MIN_KEY_BYTES:
            raise SettingsError(f"cache_salt_key_file: must hold at least {MIN_KEY_BYTES} bytes")
        self._key = key
        self._salts: dict[str, bytes] = {}

    def of(self, tenant: TenantPolicy) -> bytes | None:
        """A tenant's salt; None: the policy gives it no scope, and none is sent."""
        return None if tenant.cache_scope is None else self.salt(tenant.cache_scope)

    def salt(self, scope: str) -> bytes:
        """A scope's salt as a JSON string."""
        salt = self._salts.get(scope)
        if salt is None:
            digest = hmac.new(self._key, scope.encode(), hashlib.sha256).digest()
            salt = b'"' + base64.urlsafe_b64encode(digest).rstrip(b"=") + b'"'
            self._salts[scope] = salt
        return salt

    def forget(self) -> None:
        """Another policy: salts are made anew when they are asked for, and are the same."""
        self._salts.clear()
