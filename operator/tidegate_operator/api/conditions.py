"""Condition types and reasons: what status tells people, Argo CD and ``kubectl wait``.

Rules. ``Ready`` is the summary, and is never False while things merely move: False means that a
person must mend something, since Argo CD shows it as Degraded and fails the sync; Unknown means
in progress. ``lastTransitionTime`` moves only when ``status`` does. A condition that is a
warning has a type of its own and never turns Ready.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from tidegate_operator.api.fields import ApiModel, described

NEVER = "1970-01-01T00:00:00Z"
"""lastTransitionTime of conditions that nobody has decided yet."""


class Explained(StrEnum):
    """A string with a sentence that says what it stands for, for docs/api.md."""

    text: str

    def __new__(cls, value: str, text: str) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.text = text
        return member


class ConditionType(Explained):
    """What a condition is about."""

    ACCEPTED = ("Accepted", "The spec is valid and takes effect.")
    RESOLVED_REFS = ("ResolvedRefs", "Everything the spec names exists and may be used.")
    PROGRESSING = ("Progressing", "Pods are being started, replaced or removed.")
    AVAILABLE = ("Available", "At least one pod of the engine groups serves.")
    READY = ("Ready", "The summary of all others but the warnings.")
    SLO_MET = (
        "SLOMet",
        "What the tiers are promised is kept. False turns neither Ready nor Argo CD's health; "
        "absent where nothing is promised.",
    )
    POLICY_APPLIED = ("PolicyApplied", "Every ready sidecar has the newest policy in force.")
    AUTOSCALING = (
        "Autoscaling",
        "The number of pods is autoscaling's, and spec.replicas is ignored; False while data of a "
        "signal are missing.",
    )
    UPGRADE_AVAILABLE = (
        "UpgradeAvailable",
        "Warning: the pool's pods are older than the operator.",
    )
    GPU_MISMATCH = (
        "GPUMismatch",
        "Warning: an engine's pod asks for other GPUs than its tensor parallelism uses.",
    )
    UNUSUAL_PREFILL_BUDGET = (
        "UnusualPrefillBudget",
        "Warning: prompts get less than 20 or more than 40 percent of the engine's step.",
    )
    ROUTED = (
        "Routed",
        "Requests reach the pool by its router; there while the pool has one.",
    )
    GROUPS_NOT_ROUTED = (
        "GroupsNotRouted",
        "Warning: each engine group is called at an address of its own.",
    )
    FALLBACK = (
        "Fallback",
        "The fallback serves, as no other pod does; there while the pool has one.",
    )
    SHARED_STATE_MISSING = (
        "SharedStateMissing",
        "Warning: the pods count rate limits and fair shares each for itself.",
    )
    ENGINE_METRICS_MISSING = (
        "EngineMetricsMissing",
        "Warning: engines do not say how full they are, so that less is let in at once.",
    )
    TIER_WITHOUT_KV = (
        "TierWithoutKV",
        "Warning: a tier has no block of the KV cache of its own.",
    )


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Reason(Explained):
    """Why a condition has its status; part of the API, never renamed."""

    PENDING = ("Pending", "Not looked at by the operator yet.")
    ACCEPTED = ("Accepted", "Valid and in effect.")
    INVALID = (
        "Invalid",
        "A field has a value that cannot be used; the message names it and the cure.",
    )
    RESOLVED = ("Resolved", "All that is named was found.")
    TIER_NOT_FOUND = ("TierNotFound", "A TenantTier that is named does not exist.")
    TIER_INVALID = ("TierInvalid", "A TenantTier that is named was not accepted.")
    TIER_NOT_ALLOWED = (
        "TierNotAllowed",
        "The tier's allowedNamespaces does not select the Tenant's namespace.",
    )
    WEIGHT_NOT_ALLOWED = (
        "WeightNotAllowed",
        "The Tenant's weight is above the tier's tenantOverrides.maxWeight.",
    )
    RATE_LIMIT_NOT_ALLOWED = (
        "RateLimitNotAllowed",
        "A rate limit of the Tenant is looser than its tier's, whose tenantOverrides.rateLimits is "
        "Tighten.",
    )
    SECRET_NOT_FOUND = (
        "SecretNotFound",
        "A Secret that is named does not exist, or carries no label tidegate.io/api-keys.",
    )
    SECRET_KEY_MISSING = ("SecretKeyMissing", "The Secret has no such key.")
    KEY_TOO_SHORT = (
        "KeyTooShort",
        "An API key has less than 256 bits; `tidegate keys new` makes one.",
    )
    KEY_CONFLICT = ("KeyConflict", "An older Tenant has the same API key and keeps it.")
    NO_KEYS = ("NoKeys", "The Tenant has no usable API key, so nobody can call as it.")
    NO_POOL = ("NoPool", "No ServingPool serves the Tenant.")
    HELD = ("Held", "The Tenant is stopped by its own spec.stop.")
    NAMESPACE_NOT_ALLOWED = (
        "NamespaceNotAllowed",
        "The operator's settings do not let this pool serve Tenants of other namespaces.",
    )
    OVERCOMMITTED = (
        "OverCommitted",
        "The reservations of the pool's tiers sum to more than 100 percent.",
    )
    TOO_FEW_REPLICAS = (
        "TooFewReplicas",
        "The pool has fewer replicas than engine groups, so each keeps the pods that it has.",
    )
    NO_TIERS = ("NoTiers", "The pool has no tier to serve.")
    NO_TENANTS = ("NoTenants", "The pool serves no Tenant, so nobody can call it.")
    NO_READY_PODS = ("NoReadyPods", "No pod of the pool is ready yet.")
    PODS_READY = ("PodsReady", "As many pods are ready as are wanted.")
    PODS_FAILING = ("PodsFailing", "Pods cannot start; the message says why.")
    SCALING = ("Scaling", "Pods are being added or removed.")
    SCALING_ACTIVE = ("ScalingActive", "All that decides on the number of pods is known.")
    SCALING_HELD = (
        "ScalingHeld",
        "Data of a signal are missing, so no pod is taken away; the message says which.",
    )
    ROLLING_OUT = ("RollingOut", "Pods are being replaced by newer ones.")
    SCALED_TO_ZERO = ("ScaledToZero", "replicas is 0, so nothing serves.")
    APPLY_FAILED = ("ApplyFailed", "The API server refused a child object; the message says why.")
    POD_TEMPLATE_CONFLICT = (
        "PodTemplateConflict",
        "podTemplate says what another field of the pool says; the message names that field. The "
        "pods stay as they are.",
    )
    POD_REFUSED = (
        "PodRefused",
        "The cluster would refuse such pods; the message says why. The pods stay as they are.",
    )
    IMMUTABLE_FIELD_CHANGE = (
        "ImmutableFieldChange",
        "A field was changed that cannot change while the StatefulSet exists; the message names it "
        "and the way out. All else takes effect.",
    )
    GPUS_IDLE = ("GPUsIdle", "The pod asks for GPUs that the engine does not use.")
    TOO_FEW_GPUS = ("TooFewGPUs", "The pod asks for fewer GPUs than the engine needs to start.")
    BUDGET_TOO_SMALL = ("BudgetTooSmall", "Long prompts hardly get on.")
    BUDGET_TOO_LARGE = ("BudgetTooLarge", "Those who wait for their next token wait for prompts.")
    ROUTED = ("Routed", "All requests come by the router.")
    ROUTER_NOT_READY = (
        "RouterNotReady",
        "No pod of the router is ready, so that nobody can call the pool.",
    )
    ROUTER_JOINING = (
        "RouterJoining",
        "The engines' pods serve clients themselves until the router can; the message says what "
        "that waits for.",
    )
    ROUTER_LEAVING = (
        "RouterLeaving",
        "The router serves until all pods take clients without it.",
    )
    NO_ROUTER = (
        "NoRouter",
        "Nothing brings a request to its tier's engine group; the message names the addresses.",
    )
    NO_OTHER_POD_SERVES = (
        "NoOtherPodServes",
        "No pod of the engine groups is ready; the message names the tiers that are served.",
    )
    STANDS_BY = ("StandsBy", "Pods of the fallback are ready, and nothing is sent to them.")
    NO_KV_BLOCKS = (
        "NoKVBlocks",
        "kvPools leave the tier nothing, so that its requests run only on what others lend.",
    )
    SHARED_STATE_UNSET = (
        "SharedStateUnset",
        "There are several pods, and the pool names no server in which they count together.",
    )
    SHARED_STATE_UNAVAILABLE = (
        "SharedStateUnavailable",
        "Pods do not reach the server, or it does not do what they ask; the message says why.",
    )
    METRICS_UNREADABLE = (
        "MetricsUnreadable",
        "For a minute or more, metrics of an engine lack what the gate goes by; the message names "
        "pods and metrics.",
    )
    OBJECTIVES_MET = ("ObjectivesMet", "Every objective is kept, of those that requests count for.")
    OBJECTIVE_MISSED = (
        "ObjectiveMissed",
        "An objective is not kept; the message names tier, objective, how many got it of how many "
        "are promised it, and where to look.",
    )
    NO_REQUESTS = ("NoRequests", "Nothing was measured yet, so nobody can say.")
    PROMETHEUS_UNAVAILABLE = (
        "PrometheusUnavailable",
        "The pool's Prometheus does not say how its promises are kept; the message says why.",
    )
    POLICY_APPLIED = ("PolicyApplied", "All ready sidecars run the newest policy.")
    POLICY_PENDING = ("PolicyPending", "Some sidecars still run an older policy.")
    POLICY_REFUSED = ("PolicyRefused", "A sidecar refused the policy; the message says why.")
    UPGRADE_AVAILABLE = (
        "UpgradeAvailable",
        "An upgrade of the operator restarts nothing; the message says how to take what is newer.",
    )
    READY = ("Ready", "Nothing is left to do.")


class Condition(ApiModel):
    """One condition of an object."""

    type: str = described("What the condition is about.", min_length=1, max_length=64)
    status: ConditionStatus = described("Unknown: not decided, or in progress.")
    reason: str = described(
        "Why, as one word that programs may compare.",
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z][A-Za-z0-9]*$",
    )
    message: str = described("Why, for people; names the field and the cure.", max_length=4096)
    last_transition_time: datetime = described("When status last changed.")
    observed_generation: int | None = described(
        "The metadata.generation it was decided for.", unset="not decided yet", ge=0
    )


def pending_conditions() -> list[dict[str, Any]]:
    """What the CRD seeds every new object with, so that none looks finished before its time."""
    return [
        {
            "type": str(kind),
            "status": str(ConditionStatus.UNKNOWN),
            "reason": str(Reason.PENDING),
            "message": "Waiting for the operator",
            "lastTransitionTime": NEVER,
        }
        for kind in (ConditionType.ACCEPTED, ConditionType.READY)
    ]
