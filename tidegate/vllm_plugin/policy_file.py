"""``policy.json`` as the engine process reads it: hot, and without the tenants.

Theory of operation: the file is the sidecar's, one document or a folder of shards as a projected
volume shows them. Only the first document is read: it carries the tiers, pools and prefill terms,
and tenants play no part in a step. It is looked at (one ``stat``) at the beginning of a step, at
most once in ``POLL_SECONDS``, and read when it has changed.

Invariant: what can't be read or decoded changes nothing: the last good policy stays in force, and
the error is counted and told once per content.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from tidegate.scheduling.contracts import ContractError, Policy, decode

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0


class PolicyFile:
    """One policy file or folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._next_look = 0.0
        self._signature: tuple[object, ...] | None = None
        self.generation: int | None = None
        """Of the policy read last; None: none could be read yet."""
        self.errors = 0

    def changed(self, now: float) -> Policy | None:
        """The policy, if it is another than at the last call; ``now``: monotonic seconds."""
        if now < self._next_look:
            return None
        self._next_look = now + POLL_SECONDS
        try:
            document = self._document()
            stat = document.stat()
            signature: tuple[object, ...] = (
                str(document), stat.st_ino, stat.st_size, stat.st_mtime_ns
            )  # fmt: skip
            if signature == self._signature:
                return None
            self._signature = signature
            policy = read_policy(document)
        except (OSError, ContractError) as error:
            self._refuse(error)
            return None
        self.generation = policy.generation
        logger.info("tidegate: policy generation %s in force", policy.generation)
        return policy

    def _document(self) -> Path:
        if not self._path.is_dir():
            return self._path
        data = self._path / "..data"
        folder = Path(os.path.realpath(data)) if data.exists() else self._path
        found = sorted(folder.glob("policy*.json"))
        if not found:
            raise ContractError(f"{self._path}: no policy*.json in it")
        return found[0]

    def _refuse(self, error: Exception) -> None:
        if isinstance(error, OSError):
            if self._signature is None and self.errors:
                return
            self._signature = None
        self.errors += 1
        logger.warning("tidegate: %s; the policy in force stays as it was", error)


def read_policy(document: Path) -> Policy:
    """One document, its tenants left out; OSError or ContractError says what is wrong."""
    try:
        data = json.loads(document.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ContractError(f"{document.name} is not JSON: {error}") from None
    if isinstance(data, dict):
        data["tenants"] = []
    return decode(Policy, data, document.name)
