"""A process under a policy: how one comes into force, from files and from the admin port.

Of two sources the higher generation wins, whatever came last; the same generation has one content.
What cannot be read or applied leaves the last good policy in force, counted and shown.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from tidegate.scheduling.contracts import Bundle, ContractError
from tidegate_sidecar import policy_files
from tidegate_sidecar.in_force import InForce

log = logging.getLogger("tidegate.sidecar")


class StaleGenerationError(Exception):
    """Older than what is in force, or the same generation with another content."""


class Governed:
    """What runs under a policy; subclasses say what it changes. ``engine_group``: of a sidecar."""

    def __init__(self, engine_group: str | None = None) -> None:
        self._engine_group = engine_group
        self.in_force: InForce | None = None
        self.policy_error: str | None = None
        self.policy_reload_failures = 0

    def put_in_force(self, bundle: Bundle, in_force: InForce) -> None:
        """Act on a bundle that is in force from here on; ContractError: it cannot be."""

    def apply(self, bundle: Bundle) -> bool:
        """Put a bundle in force, whole, at once; False: it was in force already.

        Raises :class:`StaleGenerationError` for a lower generation and for the same one with
        another content. ContractError: it is another pool's.
        """
        current = self.in_force
        if current is not None:
            generation = bundle.policy.generation
            if generation < current.policy.generation:
                raise StaleGenerationError(
                    f"generation {generation} is older than {current.policy.generation}, "
                    "which is in force"
                )
            if generation == current.policy.generation:
                if bundle == current.bundle:
                    return False
                raise StaleGenerationError(
                    f"generation {generation} is in force with another content"
                )
            if bundle.policy.pool != current.policy.pool:
                raise ContractError(f"policy.pool: {current.policy.pool!r} is served here")
        served = None if current is None else current.model
        new = InForce(bundle, served, self._engine_group)
        self.put_in_force(bundle, new)
        self.in_force = new
        self.policy_error = None
        log.info("policy generation %d is in force", bundle.policy.generation)
        return True

    def policy_failed(self, reason: str) -> None:
        """The last good policy stays; counted and shown once for each reason."""
        if reason != self.policy_error:
            self.policy_error = reason
            self.policy_reload_failures += 1
            log.warning("policy not applied: %s", reason)


class PolicyFiles:
    """Follows the policy and key files."""

    def __init__(self, governed: Governed, policy: Path, keys: Path, poll_seconds: float) -> None:
        self._governed = governed
        self._policy = policy
        self._keys = keys
        self._poll_seconds = poll_seconds
        self._signature: policy_files.Signature | None = None

    def look(self) -> None:
        """Apply what changed since the last look, if anything."""
        governed = self._governed
        try:
            seen = policy_files.signature(self._policy, self._keys)
            if seen == self._signature:
                return
            bundle = policy_files.read_bundle(self._policy, self._keys)
        except (ContractError, OSError) as error:
            self._signature = None
            governed.policy_failed(str(error))
            return
        self._signature = seen
        current = governed.in_force
        if current is not None and bundle.policy.generation < current.policy.generation:
            return  # a newer one was posted; the files will follow
        try:
            governed.apply(bundle)
        except (StaleGenerationError, ContractError) as error:
            governed.policy_failed(str(error))

    async def follow(self) -> None:
        """Look again and again."""
        while True:
            try:
                self.look()
            except Exception:
                log.exception("looking at the policy files failed")
            await asyncio.sleep(self._poll_seconds)
