"""Custom resources for tests of the operator, as the API server would return them."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

Json = dict[str, Any]
API_VERSION = "tidegate.io/v1alpha1"


def digest(key: str) -> str:
    """SHA-256 of a key, as it stands in a Tenant."""
    return hashlib.sha256(key.encode()).hexdigest()


def tier(name: str, **spec: Any) -> Json:
    """A TenantTier that all namespaces may claim, unless said otherwise."""
    return {
        "apiVersion": API_VERSION,
        "kind": "TenantTier",
        "metadata": {"name": name, "uid": f"tier-{name}", "generation": 1},
        "spec": {"allowedNamespaces": {}} | spec,
    }


def tenant(
    name: str,
    tier: str = "t0",
    *,
    namespace: str = "acme",
    created: str = "2026-01-01T00:00:00Z",
    **spec: Any,
) -> Json:
    """A Tenant with one key of its own, unless said otherwise."""
    keys = [{"name": "main", "sha256": digest(f"demo-{namespace}-{name}")}]
    return {
        "apiVersion": API_VERSION,
        "kind": "Tenant",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"tenant-{namespace}-{name}",
            "generation": 1,
            "creationTimestamp": created,
        },
        "spec": {"tierRef": {"name": tier}, "apiKeys": keys} | spec,
    }


def pool(name: str = "chat", *, namespace: str = "acme", **spec: Any) -> Json:
    """A ServingPool of one replica."""
    model = {"name": "tiny", "source": {"huggingFace": {"repo": "acme/tiny"}}}
    return {
        "apiVersion": API_VERSION,
        "kind": "ServingPool",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"pool-{namespace}-{name}",
            "generation": 1,
        },
        "spec": {"model": model, "engine": {"image": "vllm/vllm-openai:v0.32.0"}, "replicas": 1}
        | spec,
    }


def key_secret(name: str, keys: dict[str, str], *, namespace: str = "acme") -> Json:
    """A labelled Secret with API keys."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"tidegate.io/api-keys": "true"},
        },
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in keys.items()},
    }
