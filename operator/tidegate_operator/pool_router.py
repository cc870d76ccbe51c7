"""The router of one pool: brought to its spec, and removed when nobody comes by it any more.

As for engines (:mod:`tidegate_operator.rollout_plan`), its pods are replaced for what the pool's
owner changed and never for an upgrade of the operator. The ServiceAccount is made first and removed
last: it tells that there was a router, or the beginning of one.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from tidegate_operator import names
from tidegate_operator.api.conditions import ConditionType, Reason
from tidegate_operator.api.serving_pool import ServingPool
from tidegate_operator.findings import Fault
from tidegate_operator.kinds import (
    DEPLOYMENT,
    NETWORK_POLICY,
    POD_DISRUPTION_BUDGET,
    POD_MONITOR,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE_ACCOUNT,
)
from tidegate_operator.kube import Forbidden, Json
from tidegate_operator.pool_children import PoolChildren
from tidegate_operator.render.router import TLS_FILES, RouterChildren
from tidegate_operator.rollout_plan import plan_rollout

_BESIDE = (SERVICE_ACCOUNT, ROLE, ROLE_BINDING, POD_DISRUPTION_BUDGET, NETWORK_POLICY)


@dataclass(frozen=True, slots=True)
class LiveRouter:
    """A pool's router as it is."""

    deployment: Json
    outdated: bool = False
    """Its pods are as an earlier version of the operator rendered them."""


async def apply_router(
    run: PoolChildren, pool: ServingPool, children: RouterChildren
) -> LiveRouter | None:
    """Bring it to its spec, but for its PodMonitor; None where there is none for what the run's
    faults say."""
    name = children.deployment["metadata"]["name"]
    desired = (
        children.service_account,
        children.role,
        children.role_binding,
        children.disruption_budget,
        children.network_policy,
    )
    for kind, child in zip(_BESIDE, desired, strict=True):
        await run.apply(kind, child)
    try:
        fault = await _tls_fault(run, pool)
        live = await run.get(DEPLOYMENT, name)
    except Forbidden as error:
        run.refused(DEPLOYMENT, name, error)
        return None
    run.faults += [fault] if fault else []
    plan = plan_rollout(children.deployment, live, (), _digest(pool, children.deployment))
    found = await run.apply_pods(DEPLOYMENT, plan, live, "spec.router")
    return None if found is None else LiveRouter(found, plan.outdated)


async def remove_router(run: PoolChildren, *, monitored: bool) -> None:
    """Remove what there is of it."""
    name = names.router_child(run.pool.metadata.name)
    if await run.get(SERVICE_ACCOUNT, name) is None:
        return
    for kind in (DEPLOYMENT, *([POD_MONITOR] if monitored else []), *reversed(_BESIDE)):
        if not await run.remove(kind, name):
            return


def _digest(pool: ServingPool, deployment: Json) -> str:
    """Of what makes the pods what they are, as their owner says it."""
    router, engine = pool.spec.router, pool.spec.engine
    assert router is not None
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    cold = {
        "router": router.model_dump(mode="json", exclude={"replicas"}, exclude_none=True),
        "image": container["image"],
        "drain": engine.drain_timeout_seconds,
        "secrets": [secret.name for secret in engine.image_pull_secrets or ()],
    }
    return hashlib.sha256(json.dumps(cold, sort_keys=True).encode()).hexdigest()[:32]


async def _tls_fault(run: PoolChildren, pool: ServingPool) -> Fault | None:
    tls = pool.spec.router.tls if pool.spec.router else None
    if tls is None:
        return None
    kind, name = ConditionType.RESOLVED_REFS, tls.secret_ref.name
    field, namespace = "spec.router.tls.secretRef", pool.metadata.namespace
    found = await run.get(SECRET, name)
    if found is None:
        text = (
            f"{field}: there is no Secret {name} in namespace {namespace}, so that no router pod "
            "starts, and those that serve go on as they are; let cert-manager write it, or "
            f"kubectl create secret tls {name} -n {namespace} --cert=FILE --key=FILE"
        )
        return Fault(kind, Reason.SECRET_NOT_FOUND, text)
    if missing := [file for file in TLS_FILES if file not in (found.get("data") or {})]:
        text = (
            f"{field}: Secret {name} has no {' and no '.join(missing)}; it must be of type "
            "kubernetes.io/tls"
        )
        return Fault(kind, Reason.SECRET_KEY_MISSING, text)
    return None
