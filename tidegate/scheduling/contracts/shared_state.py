"""The Redis or Valkey in which the pods of a pool count together, and how a pod finds it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidegate.scheduling.contracts.codec import ContractError, described

ADDRESS_PATTERN = r"rediss?://[^\s@/:]+(:[0-9]{1,5})?(/[0-9]{1,3})?"
"""No user and no password: those have no place in a policy."""


@dataclass(frozen=True, slots=True)
class SharedState:
    """A Redis or Valkey server."""

    address: str = described(
        "`redis://HOST:PORT/DATABASE`, or `rediss://` for TLS; port 6379 and database 0 where they "
        "are left out.",
        low=9,
        high=253,
    )
    secret_file: str | None = described(
        "File with the password, read for each connection; null: none is needed.", default=None
    )
    scope: str | None = described(
        "Whose pods share what they serve: the UID of the pool; null: its namespace/name.",
        default=None,
        low=1,
        high=317,
    )

    def __post_init__(self) -> None:
        if not re.fullmatch(ADDRESS_PATTERN, self.address):
            raise ContractError(
                "address: must be redis://HOST:PORT/DATABASE or rediss://..., without a password"
            )


@dataclass(frozen=True, slots=True)
class SharedStateStatus:
    """How it stands with the server; while it is away the sidecar counts for itself."""

    available: bool = described("It answers, and takes writes.")
    since: float = described("Since when, wall clock, seconds since the epoch.", low=0)
    error: str | None = described("Why it is away; null: it is not.", default=None)
