"""The contracts between Tidegate's parts: versioned JSON as frozen dataclasses.

``docs/contracts.md`` is generated from here; ``tests/contracts/`` holds one example of each, read
by the tests of both sides.
"""

from tidegate.scheduling.contracts.codec import ContractError, decode, dumps, encode, loads
from tidegate.scheduling.contracts.keys import KEYS_VERSION, Bundle, KeySet
from tidegate.scheduling.contracts.policy import (
    POLICY_VERSION,
    BetweenTiers,
    EngineLimits,
    Fairness,
    FairnessUnit,
    ModelPolicy,
    OutputLimits,
    Policy,
    QueueLimits,
    SchedulingMode,
    Shard,
    Stop,
    Task,
    TenantPolicy,
    TierPolicy,
    merge_shards,
)
from tidegate.scheduling.contracts.status import (
    LATENCY_BOUNDS_SECONDS,
    STATUS_VERSION,
    EngineStatus,
    GateStatus,
    Histogram,
    Refusal,
    SidecarStatus,
    TenantStatus,
    TierStatus,
)

__all__ = [
    "KEYS_VERSION",
    "LATENCY_BOUNDS_SECONDS",
    "POLICY_VERSION",
    "STATUS_VERSION",
    "BetweenTiers",
    "Bundle",
    "ContractError",
    "EngineLimits",
    "EngineStatus",
    "Fairness",
    "FairnessUnit",
    "GateStatus",
    "Histogram",
    "KeySet",
    "ModelPolicy",
    "OutputLimits",
    "Policy",
    "QueueLimits",
    "Refusal",
    "SchedulingMode",
    "Shard",
    "SidecarStatus",
    "Stop",
    "Task",
    "TenantPolicy",
    "TenantStatus",
    "TierPolicy",
    "TierStatus",
    "decode",
    "dumps",
    "encode",
    "loads",
    "merge_shards",
]
