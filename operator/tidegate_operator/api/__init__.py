"""The API tidegate.io/v1alpha1: the one source of the CRDs and docs/api.md.

``parse(kind, obj)`` reads an object as the API server returned it; absent fields are ``None``
and what they mean is resolved where they are used.
"""

from tidegate_operator.api.common import (
    API_KEYS_LABEL,
    API_VERSION,
    GROUP,
    VERSION,
    FieldError,
    LabelSelector,
    ObjectMeta,
    ResourceRequirements,
    SecretKeyRef,
    parse,
)
from tidegate_operator.api.conditions import Condition, ConditionStatus, ConditionType, Reason
from tidegate_operator.api.fields import duration_seconds
from tidegate_operator.api.serving_pool import ServingPool, ServingPoolSpec
from tidegate_operator.api.status import ServingPoolStatus, TenantStatus, TenantTierStatus
from tidegate_operator.api.tenant import Tenant, TenantSpec
from tidegate_operator.api.tenant_tier import TenantTier, TenantTierSpec

__all__ = [
    "API_KEYS_LABEL",
    "API_VERSION",
    "GROUP",
    "VERSION",
    "Condition",
    "ConditionStatus",
    "ConditionType",
    "FieldError",
    "LabelSelector",
    "ObjectMeta",
    "Reason",
    "ResourceRequirements",
    "SecretKeyRef",
    "ServingPool",
    "ServingPoolSpec",
    "ServingPoolStatus",
    "Tenant",
    "TenantSpec",
    "TenantStatus",
    "TenantTier",
    "TenantTierSpec",
    "TenantTierStatus",
    "duration_seconds",
    "parse",
]
