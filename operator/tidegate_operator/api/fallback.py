"""ServingPool's `fallback`: engines that serve some tiers while no other pod of the pool can.

Whole engines, of the pool's model: one that only prefills could answer nobody (source 000 has such
nodes as a last resort). They stand by with the model loaded, so what they cost is chosen by
``replicas`` and by what they may have less of.
"""

from __future__ import annotations

from tidegate_operator.api.common import LabelValue, ResourceRequirements
from tidegate_operator.api.engine import EngineArg, ImageName, Parallelism, Plugin
from tidegate_operator.api.fields import ApiModel, KindName, described, rule
from tidegate_operator.api.pod_scheduling import Toleration

DEFAULT_FALLBACK_REPLICAS = 1
MAX_FALLBACK_TIERS = 32


class FallbackEngine(ApiModel):
    """What is different of the fallback's engines; each field replaces that of ``spec.engine``."""

    image: ImageName | None = described("Image with vLLM.", unset="as in spec.engine")
    parallelism: Parallelism | None = described("Spread over GPUs.", unset="as in spec.engine")
    resources: ResourceRequirements | None = described(
        "Compute resources of the engine's container, all of them. Where parallelism differs, name "
        "the GPUs here too.",
        unset="as in spec.engine",
    )
    args: list[EngineArg] | None = described(
        "Further arguments of `vllm serve`, all of them.",
        unset="as in spec.engine",
        empty="none but those that are always given",
        cel=[
            rule(
                "size(self) == 0 || self[0].startsWith('-')",
                "must begin with a flag: what to serve stands in spec.model.source",
            )
        ],
        max_length=32,
        list_type="atomic",
    )
    plugin: Plugin | None = described(
        "Whether they run Tidegate's scheduler plug-in.", unset="as in spec.engine"
    )
    node_selector: dict[str, LabelValue] | None = described(
        "Labels that a node must have to run the pods, all of them.",
        unset="as in spec.engine",
        empty="any node",
        max_length=32,
    )
    tolerations: list[Toleration] | None = described(
        "Taints of nodes that the pods bear, all of them.",
        unset="as in spec.engine",
        empty="none",
        max_length=32,
        list_type="atomic",
    )


class Fallback(ApiModel):
    """Engines that stand by for the tiers that must not be without one."""

    tiers: list[KindName] = described(
        "TenantTiers that it serves while no pod of the pool's engine groups does. Requests of all "
        "others get 503 then.",
        min_length=1,
        max_length=MAX_FALLBACK_TIERS,
        list_type="set",
    )
    replicas: int | None = described(
        "Its pods. They count in no figure of the pool's replicas, and no autoscaler sets them.",
        unset=str(DEFAULT_FALLBACK_REPLICAS),
        zero="none stands by",
        ge=0,
        le=100,
    )
    engine: FallbackEngine | None = described(
        "What is different of its engines.", unset="nothing: as in spec.engine, without a draft"
    )

    @property
    def pods(self) -> int:
        """``replicas``, resolved."""
        return DEFAULT_FALLBACK_REPLICAS if self.replicas is None else self.replicas
