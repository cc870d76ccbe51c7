"""ServingPool's `engine`: the container that runs vLLM, and the flags of it that are ours to set.

``engine.args`` reach vLLM as they are, but for flags that the operator sets itself. A second
value for one of those would silently win or lose by position, so the API server refuses them and
names the field to use. vLLM's parser takes ``_`` for ``-`` and any unambiguous abbreviation of a
flag, so a flag is refused when its name, so normalised, is a prefix of an owned one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from tidegate_operator.api.common import (
    ConfigMapKeyRef,
    LabelValue,
    ResourceRequirements,
    SecretKeyRef,
)
from tidegate_operator.api.fields import (
    ApiModel,
    ObjectName,
    Rule,
    described,
    duration,
    duration_seconds,
    rule,
    rules,
)
from tidegate_operator.api.pod_scheduling import (
    Affinity,
    ImagePullSecret,
    Toleration,
    TopologySpread,
)
from tidegate_operator.api.pod_template import PodTemplate

DEFAULT_STARTUP_TIMEOUT = "30m"
DEFAULT_DRAIN_TIMEOUT = "2m"

OWNED_FLAGS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("--model",), "use spec.model.source"),
    (("--served-model-name",), "use spec.model.name"),
    (("--max-model-len",), "use spec.model.maxModelLen"),
    (("--long-prefill-token-threshold",), "use spec.prefill.chunkTokens"),
    (("--runner", "--task", "--convert"), "use spec.model.task"),
    (("--revision",), "use spec.model.source.huggingFace.revision"),
    (("--hf-token",), "use spec.model.source.huggingFace.tokenSecretRef"),
    (("--tensor-parallel-size", "-tp"), "use spec.engine.parallelism.tensor"),
    (("--shutdown-timeout",), "use spec.engine.drainTimeout"),
    (("--speculative-config*", "--spec-*", "-sc"), "use spec.engineGroups[].draft"),
    (("--scheduling-policy",), "use spec.schedulingMode"),
    (("--scheduler-cls", "--additional-config"), "use spec.engine.plugin"),
    (
        ("--api-key",),
        "use spec.apiKeys of a Tenant; the engine is reached through the sidecar alone",
    ),
    (
        ("--uds", "--host", "--port", "--grpc", "--root-path", "--headless"),
        "the engine listens on a Unix socket of the pod; use spec.service for the outside",
    ),
    (
        ("--ssl-*", "--enable-ssl-refresh"),
        "the engine has no network port; end TLS before spec.service",
    ),
    (("--config",), "a file could set flags that other fields own; write them into args"),
    (("--disable-log-stats",), "scheduling reads the engine's metrics"),
    (
        ("--nnodes", "--node-rank", "--master-addr", "--master-port", "-n", "-r"),
        "engines of several nodes are not supported in v1alpha1",
    ),
    (
        ("--data-parallel-*", "-dp"),
        "data parallel is not supported in v1alpha1; use spec.replicas",
    ),
)
"""Flags of vLLM that the operator sets or rules out (`*`: all that begin so), and what to use."""

_NAME = "self.split('=', 2)[0].replace('_', '-')"


def _refuse(flags: tuple[str, ...], advice: str) -> Rule:
    """Long flags by prefix (an abbreviation), short ones also with their value glued on."""
    clauses = [f"self.matches('^{flag}[a-z]*([=0-9]|$)')" for flag in flags if flag[1] != "-"]
    long = [flag.removesuffix("*") for flag in flags if flag.startswith("--")]
    families = [flag.removesuffix("*") for flag in flags if flag.endswith("*")]
    if long:
        owned = _cel_list(long) + f".exists(flag, flag.startsWith({_NAME}))"
        clauses.append(f"(self.startsWith('--') && {owned})")
    clauses += [f"{_NAME}.startsWith('{family}')" for family in families]
    return rule(f"!({' || '.join(clauses)})", f"{', '.join(flags)} cannot be set here: {advice}")


def _cel_list(texts: list[str]) -> str:
    return "[" + ", ".join(f"'{text}'" for text in texts) + "]"


EngineArg = Annotated[
    str,
    StringConstraints(min_length=1, max_length=4096),
    Field(
        json_schema_extra={
            "x-kubernetes-validations": [_refuse(flags, advice) for flags, advice in OWNED_FLAGS]
        }
    ),
]
ImageName = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[^\s]+$")]
RESERVED_VARIABLES = ("VLLM_API_KEY", "VLLM_PLUGINS")
EnvName = Annotated[
    str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
]


class EnvSource(ApiModel):
    """Where the value of an environment variable comes from."""

    model_config = rules(
        rule(
            "has(self.secretKeyRef) != has(self.configMapKeyRef)",
            "needs exactly one of secretKeyRef and configMapKeyRef",
        )
    )

    secret_key_ref: SecretKeyRef | None = described("A key of a Secret.", unset="not from a Secret")
    config_map_key_ref: ConfigMapKeyRef | None = described(
        "A key of a ConfigMap.", unset="not from a ConfigMap"
    )

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.secret_key_ref is None) == (self.config_map_key_ref is None):
            raise ValueError("needs exactly one of secretKeyRef and configMapKeyRef")
        return self


class EnvVar(ApiModel):
    """One environment variable of the engine's container."""

    model_config = rules(
        rule(
            "!(has(self.value) && has(self.valueFrom))",
            "has both value and valueFrom; only one of them can say it",
        ),
        rule(
            f"!(self.name in {list(RESERVED_VARIABLES)})",
            "this variable is the operator's own; API keys stand in spec.apiKeys of a Tenant",
            field_path=".name",
        ),
    )

    name: EnvName = described("Name of the variable.")
    value: str | None = described(
        "Its value, as it is: $(NAME) is not expanded.",
        unset="valueFrom says it, or it is empty",
        max_length=32_768,
    )
    value_from: EnvSource | None = described("Where its value is.", unset="value says it")

    @model_validator(mode="after")
    def _at_most_one(self) -> Self:
        if self.value is not None and self.value_from is not None:
            raise ValueError("has both value and valueFrom; only one of them can say it")
        return self


class Parallelism(ApiModel):
    """Over how many GPUs of one node an engine is spread."""

    tensor: int | None = described(
        "GPUs that share each layer. Where resources names no nvidia.com/gpu, as many are asked "
        "for.",
        unset="1",
        ge=1,
        le=64,
    )


class Plugin(StrEnum):
    """Whether the engines run Tidegate's scheduler plug-in."""

    ENABLED = "Enabled"
    DISABLED = "Disabled"


class EngineSpec(ApiModel):
    """The container that runs vLLM, and where. A change of any field replaces the pods, one by
    one."""

    image: ImageName = described("Image with vLLM, such as vllm/vllm-openai:v0.32.0.")
    parallelism: Parallelism | None = described(
        "Spread over GPUs.", unset="as if all its fields were unset"
    )
    resources: ResourceRequirements | None = described(
        "Compute resources of the engine's container.",
        unset="as many GPUs as parallelism.tensor names; nothing else",
    )
    args: list[EngineArg] | None = described(
        "Further arguments of `vllm serve`, such as --max-num-seqs=64. Flags that other fields "
        "stand for are refused, also abbreviated. A pool that generates is given "
        "--max-num-seqs=256 and --max-num-batched-tokens=8192 where they do not stand here, so "
        "that the scheduler knows them. Images come as data: URLs; from the hosts that "
        "--allowed-media-domains lists they are fetched, without redirects.",
        unset="only those two",
        cel=[
            rule(
                "size(self) == 0 || self[0].startsWith('-')",
                "must begin with a flag: what to serve stands in spec.model.source",
            )
        ],
        max_length=64,
        list_type="atomic",
    )
    env: list[EnvVar] | None = described(
        "Environment variables of the engine's container.",
        unset="only the operator's own",
        max_length=64,
        map_key="name",
    )
    startup_timeout: str | None = duration(
        "How long an engine may take until it serves (loading, compiling); then it is restarted.",
        low="10s",
        high="24h",
        unset=DEFAULT_STARTUP_TIMEOUT,
    )
    drain_timeout: str | None = duration(
        "How long a pod that is replaced or removed may finish what it has accepted.",
        low="0s",
        high="24h",
        unset=DEFAULT_DRAIN_TIMEOUT,
        zero="what still runs then is cut off",
    )
    node_selector: dict[str, LabelValue] | None = described(
        "Labels that a node must have to run the pods.", unset="any node", max_length=32
    )
    tolerations: list[Toleration] | None = described(
        "Taints of nodes that the pods bear, as those of GPU nodes.",
        unset="none",
        max_length=32,
        list_type="atomic",
    )
    affinity: Affinity | None = described(
        "Which nodes, and near which pods, the pods may run.", unset="anywhere"
    )
    topology_spread_constraints: list[TopologySpread] | None = described(
        "How evenly the pods are spread over nodes or zones.",
        unset="the cluster's default",
        max_length=8,
        list_type="atomic",
    )
    priority_class_name: ObjectName | None = described(
        "PriorityClass of the pods: who is scheduled first, and may displace whom. Not to be "
        "mistaken for the tiers' priority, which orders requests.",
        unset="the cluster's default",
    )
    runtime_class_name: ObjectName | None = described(
        "RuntimeClass that runs the pods, such as nvidia.", unset="the node's default"
    )
    image_pull_secrets: list[ImagePullSecret] | None = described(
        "Secrets with credentials of the registries that the images come from.",
        unset="those of the pods' ServiceAccount",
        max_length=16,
        map_key="name",
    )
    service_account_name: ObjectName | None = described(
        "ServiceAccount of the pods, in the pool's namespace, as clouds want it for reading "
        "buckets. It must exist; no token of it is mounted unless podTemplate says so.",
        unset="one that the operator makes, of the pool's name and without rights",
    )
    plugin: Plugin | None = described(
        "Enabled: vLLM's own scheduler is steered in every step, by a plug-in that an init "
        "container brings: kvPools, prefill, the tiers' preemption and their order hold inside the "
        "engine. It needs vLLM 0.32; another version does not start and says so. Disabled: the "
        "sidecar alone decides, before requests reach the engine.",
        unset="Disabled",
    )
    pod_template: PodTemplate | None = described(
        "What else pods shall say, merged over what the operator renders.", unset="nothing"
    )

    @property
    def tensor_parallel_size(self) -> int:
        """GPUs that share each layer, resolved."""
        return (self.parallelism and self.parallelism.tensor) or 1

    @property
    def startup_timeout_seconds(self) -> float:
        """`startupTimeout`, resolved."""
        return duration_seconds(self.startup_timeout or DEFAULT_STARTUP_TIMEOUT)

    @property
    def drain_timeout_seconds(self) -> float:
        """`drainTimeout`, resolved."""
        return duration_seconds(self.drain_timeout or DEFAULT_DRAIN_TIMEOUT)
