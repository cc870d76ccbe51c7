"""Tenant: one customer, its tier, its weight and its API keys."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from tidegate.scheduling.contracts import Stop
from tidegate_operator.api.common import API_KEYS_LABEL, ObjectMeta, SecretKeyRef
from tidegate_operator.api.fields import ApiModel, ItemName, KindName, described, rule, rules
from tidegate_operator.api.limits import MAX_MODELS, MAX_RATE_LIMITS, RateLimit
from tidegate_operator.api.model import ModelName
from tidegate_operator.api.status import TenantStatus

MAX_API_KEYS = 32
ISOLATED = "Isolated"

Sha256 = Annotated[str, StringConstraints(max_length=64, pattern=r"^[0-9a-f]{64}$")]


class TierRef(ApiModel):
    """A TenantTier by name."""

    name: KindName = described("Name of the TenantTier.")


class ApiKey(ApiModel):
    """One key that clients of the tenant send as `Authorization: Bearer`."""

    model_config = rules(
        rule(
            "has(self.sha256) != has(self.secretRef)",
            "needs exactly one of sha256 and secretRef",
        )
    )

    name: ItemName = described("Tells the keys of a tenant apart, for rotation.")
    sha256: Sha256 | None = described(
        "SHA-256 of the key, 64 lower-case hexadecimal digits; `tidegate keys new` prints both. "
        "The key itself stands nowhere in the cluster.",
        unset="the key is in secretRef",
    )
    secret_ref: SecretKeyRef | None = described(
        f"The key in a Secret of the Tenant's namespace that carries the label {API_KEYS_LABEL}.",
        unset="sha256 says it",
    )

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.sha256 is None) == (self.secret_ref is None):
            raise ValueError("needs exactly one of sha256 and secretRef")
        return self


class TenantSpec(ApiModel):
    """Who the tenant is and what it may use."""

    tier_ref: TierRef = described(
        "The tier it claims; that tier's allowedNamespaces must select this namespace."
    )
    weight: int | None = described(
        "Share among the tenants of the same tier: 3 gets three times what 1 gets while both have "
        "requests waiting. At most the tier's tenantOverrides.maxWeight.",
        unset="1",
        ge=1,
        le=1000,
    )
    api_keys: list[ApiKey] | None = described(
        "Keys that identify it. To rotate, add the new one, move the clients, remove the old one. "
        "A removed key stops working within seconds. Where two Tenants have the same key, the "
        "older keeps it.",
        unset="nobody can call as this tenant",
        empty="the same",
        max_length=MAX_API_KEYS,
        map_key="name",
    )
    rate_limits: list[RateLimit] | None = described(
        "Limits of its own: one with the name of a limit of its tier stands in that one's place, "
        "others hold besides. What the tier's tenantOverrides.rateLimits does not let it set makes "
        "the Tenant not accepted.",
        unset="the tier's alone",
        empty="the same",
        max_length=MAX_RATE_LIMITS,
        map_key="name",
    )
    models: list[ModelName] | None = described(
        "Models that it may call, by the names that clients send; others are not found for it.",
        unset="all that its pools serve",
        min_length=1,
        max_length=MAX_MODELS,
        list_type="set",
    )
    prefix_cache: (
        Annotated[
            str,
            StringConstraints(max_length=40, pattern=r"^(Isolated|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$"),
        ]
        | None
    ) = described(
        "Who shares what the engine has computed of its prompts. Isolated: nobody, so that nobody "
        "can tell from the time of an answer what it has asked. Else the name of a group, in lower "
        "case: the Tenants of this namespace with the same name share. Takes effect within "
        "seconds; what was cached before is not found any more.",
        unset=ISOLATED,
    )
    stop: Stop | None = described(
        "None: served. Hold: new requests get 503, waiting ones are still served. HoldAndDrain: "
        "waiting ones get 503 too. Requests in the engine always finish.",
        unset="None",
    )


class Tenant(ApiModel):
    """One customer of the pools: the tier it claims, its weight within it, and its API keys.
    Others have a kind Tenant too: `kubectl get tenants.tidegate.io`, or `tgt`."""

    api_version: Literal["tidegate.io/v1alpha1"] = "tidegate.io/v1alpha1"
    kind: Literal["Tenant"] = "Tenant"
    metadata: ObjectMeta
    spec: TenantSpec = described("Who the tenant is and what it may use.")
    status: TenantStatus = Field(
        default_factory=TenantStatus, description="What it uses; written by the operator."
    )
