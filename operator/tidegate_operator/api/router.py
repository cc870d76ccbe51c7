"""ServingPool's `router`: the edge stage as pods of its own, before the engines' pods."""

from __future__ import annotations

from tidegate_operator.api.common import ResourceRequirements
from tidegate_operator.api.fields import ApiModel, ObjectName, described

DEFAULT_ROUTER_REPLICAS = 2
MAX_ROUTER_REPLICAS = 100


class SecretName(ApiModel):
    """A Secret in the same namespace."""

    name: ObjectName = described("Name of the Secret, in the namespace of this object.")


class RouterTls(ApiModel):
    """The certificate that clients of the pool see."""

    secret_ref: SecretName = described(
        "A Secret of type kubernetes.io/tls, as cert-manager writes it. A renewed certificate "
        "serves the next connection; nothing restarts."
    )


class RouterSpec(ApiModel):
    """Pods that tell the engines' pods who asks, and choose which of them serves a request."""

    replicas: int | None = described(
        "Router pods; none of them holds a state that the others need.",
        unset=f"{DEFAULT_ROUTER_REPLICAS}, so that one is left when a node goes",
        ge=1,
        le=MAX_ROUTER_REPLICAS,
    )
    resources: ResourceRequirements | None = described(
        "Compute resources of the router's container.", unset="the operator's defaults"
    )
    tls: RouterTls | None = described(
        "Makes the pool's Service speak TLS. Within the cluster requests go on unencrypted.",
        unset="plain HTTP",
    )

    @property
    def pods(self) -> int:
        """``replicas``, resolved."""
        return DEFAULT_ROUTER_REPLICAS if self.replicas is None else self.replicas
