"""The kinds of objects that the operator reads and writes, as the API server names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object, as the API server names it."""

    group: str
    version: str
    plural: str
    name: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


TENANT_TIER = Kind("tidegate.io", "v1alpha1", "tenanttiers", "TenantTier", namespaced=False)
TENANT = Kind("tidegate.io", "v1alpha1", "tenants", "Tenant")
SERVING_POOL = Kind("tidegate.io", "v1alpha1", "servingpools", "ServingPool")
NAMESPACE = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
SECRET = Kind("", "v1", "secrets", "Secret")
SERVICE = Kind("", "v1", "services", "Service")
SERVICE_ACCOUNT = Kind("", "v1", "serviceaccounts", "ServiceAccount")
POD = Kind("", "v1", "pods", "Pod")
STATEFUL_SET = Kind("apps", "v1", "statefulsets", "StatefulSet")
DEPLOYMENT = Kind("apps", "v1", "deployments", "Deployment")
ROLE = Kind("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDING = Kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
POD_DISRUPTION_BUDGET = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICY = Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
POD_MONITOR = Kind("monitoring.coreos.com", "v1", "podmonitors", "PodMonitor")
PROMETHEUS_RULE = Kind("monitoring.coreos.com", "v1", "prometheusrules", "PrometheusRule")
"""Of the Prometheus operator, as PodMonitor; not every cluster has it."""
EVENT = Kind("", "v1", "events", "Event")
LEASE = Kind("coordination.k8s.io", "v1", "leases", "Lease")

KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        TENANT_TIER,
        TENANT,
        SERVING_POOL,
        NAMESPACE,
        SECRET,
        SERVICE,
        SERVICE_ACCOUNT,
        POD,
        STATEFUL_SET,
        DEPLOYMENT,
        ROLE,
        ROLE_BINDING,
        POD_DISRUPTION_BUDGET,
        NETWORK_POLICY,
        POD_MONITOR,
        PROMETHEUS_RULE,
        EVENT,
        LEASE,
    )
}
