"""Where the pods of a pool count together."""

from __future__ import annotations

from typing import Annotated

from pydantic import StringConstraints

from tidegate.scheduling.contracts import ADDRESS_PATTERN
from tidegate_operator.api.common import SecretKeyRef
from tidegate_operator.api.fields import ApiModel, described


class SharedStateSpec(ApiModel):
    """A Redis or Valkey server of yours, which the pods of the pool reach."""

    address: Annotated[
        str, StringConstraints(min_length=9, max_length=253, pattern=f"^{ADDRESS_PATTERN}$")
    ] = described(
        "redis://HOST:PORT/DATABASE, or rediss://HOST:PORT/DATABASE for TLS. Changes take effect "
        "within seconds and restart nothing. The server must not evict keys (maxmemory-policy "
        "noeviction), and keep them on disk (appendonly yes) if limits of a day or a month are to "
        "survive its own restarts. Tenants that several pools serve are counted over all pools "
        "that name the same server."
    )
    secret_ref: SecretKeyRef | None = described(
        "The password. The pods are replaced one by one when it is set or another Secret is named; "
        "a changed password is read with the next connection.",
        unset="the server asks for none",
    )
