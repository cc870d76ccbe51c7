"""The status of each kind, put together from what was found and what was measured. Pure.

Two parts, because they are written at different times: the *state* (conditions and what goes with
them) at once when it changes, the *figures* (load, shares, quantiles) at intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.scheduling.contracts import FALLBACK_GROUP
from tidegate_operator import names
from tidegate_operator.api.conditions import ConditionStatus, ConditionType, Reason
from tidegate_operator.api.serving_pool import ServingPool
from tidegate_operator.api.status import MAX_POOLS, MAX_TENANT_POOLS
from tidegate_operator.autoscale.pool_scaler import PoolScaler
from tidegate_operator.autoscale.status import scaling_finding, scaling_status
from tidegate_operator.conditions import merge_conditions, said_before
from tidegate_operator.engine_groups import Group, engine_groups, home_of
from tidegate_operator.fallback import fallback_finding, fallback_groups, is_spare
from tidegate_operator.findings import Finding, joined
from tidegate_operator.judge import TenantVerdict, TierVerdict
from tidegate_operator.pool_state import PodState, Rollout, readiness, rollout
from tidegate_operator.pool_warnings import pool_warnings
from tidegate_operator.reconciled import PoolState
from tidegate_operator.routing import with_router

Json = dict[str, Any]

PATIENCE_SECONDS = 5.0
"""A policy that is under way for less is no news."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """How far the newest policy got."""

    ready: int
    """Ready sidecars."""
    behind: tuple[str, ...] = ()
    """Names of ready pods that do not run it yet."""
    refusals: tuple[str, ...] = ()
    pending_seconds: float = 0.0
    kv_blocks: int | None = None
    """Of the engine that has fewest; unset: not known yet."""
    cut_off: tuple[str, ...] = ()
    """Ready pods that do not reach their shared state, and why."""
    unread_engines: tuple[str, ...] = ()
    """Ready pods whose engine does not say how full it is, and what its metrics lack."""


def pool_state_status(
    old: Json,
    state: PoolState,
    pods: Sequence[PodState],
    delivered: Delivered,
    operator_sidecar_image: str,
    now_seconds: float,
    scaler: PoolScaler | None = None,
    slo: Sequence[Finding] | None = (),
    routers: Sequence[PodState] = (),
) -> Json:
    """What changes at once in ``ServingPool.status``; ``scaler``: of a pool that is scaled; ``slo``
    is SLOMet, None while it has still to be found out; ``routers`` are its router's pods."""
    conditions = old.get("conditions") or []
    findings = [*state.findings]
    status: Json = {"observedGeneration": state.generation}
    if state.pool is not None:
        tenants = len(state.compiled.tenant_names) if state.compiled else 0
        living = [pod for pod in pods if not pod.terminating]
        main = [pod for pod in living if not is_spare(pod)]
        groups = wanted_groups(state)
        # Of a pool without groups the count of its pods says it all.
        named = [g.name for g in groups if g.replicas] if state.pool.spec.engine_groups else ()
        desired = sum(group.replicas for group in groups)
        findings += readiness(desired, main, _rollouts(state), state.faults, tenants, named)
        findings = with_router(findings, state.route, state.pool.spec.router, routers)
        findings += fallback_finding(state.pool, pods)
        findings += _policy_applied(state, delivered, conditions)
        findings += scaling_finding(scaler)
        findings += _slo_met(slo, conditions)
        findings += pool_warnings(
            state.pool,
            state,
            operator_sidecar_image,
            delivered.kv_blocks,
            delivered.cut_off,
            delivered.unread_engines,
        )
        status |= {
            "desiredReplicas": desired,
            "replicas": len(main),
            "readyReplicas": sum(pod.ready for pod in main),
            "selector": _selector(state.pool),
            "addresses": addresses(state),
            "engineGroups": _groups(state, living),
            "scaling": scaling_status(scaler),
        }
        if state.delivery and delivered.ready and not delivered.behind:
            status["policyGeneration"] = state.delivery.generation
    else:
        text = joined(fault.message for fault in state.faults)
        findings.append(Finding(ConditionType.READY, ConditionStatus.FALSE, Reason.INVALID, text))
    status["conditions"] = merge_conditions(conditions, findings, state.generation, now_seconds)
    return status


def wanted_groups(state: PoolState) -> list[Group]:
    """The engine groups of the spec, without former ones."""
    assert state.pool is not None
    named = {group.name for group in engine_groups(state.pool)}
    return [group for group in state.groups if group.name in named]


def _rollouts(state: PoolState) -> Rollout:
    """Whether all pods are as their StatefulSets have them, and none of a former group is left."""
    return Rollout(
        all(rollout(state.stateful_sets.get(group.name)).settled for group in state.groups)
        and len(state.groups) == len(_shown_groups(state))
    )


def _shown_groups(state: PoolState) -> list[Group]:
    """The engine groups of the spec, and its fallback."""
    assert state.pool is not None
    return [*wanted_groups(state), *(fallback_groups(state.pool, ()))]


def _selector(pool: ServingPool) -> str:
    """Selects what ``replicas`` counts, as the API server's /scale can read it: no ``!=``."""
    selects = [f"{key}={value}" for key, value in names.engine_selector(pool.metadata.name).items()]
    if pool.spec.fallback is not None:
        selects.append(f"{names.GROUP_LABEL} notin ({FALLBACK_GROUP})")
    return ",".join(selects)


def _groups(state: PoolState, living: Sequence[PodState]) -> list[Json] | None:
    """The engine groups that the spec names, and its fallback."""
    assert state.pool is not None
    if not state.pool.spec.engine_groups and state.pool.spec.fallback is None:
        return None
    rows = []
    for group in _shown_groups(state):
        pods = [pod for pod in living if pod.group == group.name]
        uncalled = state.route.settled or group.name == FALLBACK_GROUP
        rows.append(
            {
                "name": group.name,
                "desired": group.replicas,
                "replicas": len(pods),
                "readyReplicas": sum(pod.ready for pod in pods),
                "address": None if uncalled else group_address(state, group.name),
            }
        )
    return rows


def group_address(state: PoolState, group: str) -> str:
    """Base URL of one engine group within the cluster, whose pods are called without a router."""
    namespace, pool = state.key
    return f"http://{names.group_child(pool, group)}.{namespace}.svc:{names.TENANT_PORT}"


def address_for(state: PoolState, tier: str) -> str:
    """Base URL, within the cluster, that Tenants of a tier should call."""
    home = home_of(state.pool, tier) if state.pool and not state.route.leads else None
    return _address(state) if home is None else group_address(state, home)


def _address(state: PoolState) -> str:
    """Base URL of the pool's Service within the cluster."""
    namespace, name = state.key
    return f"{state.route.scheme}://{name}.{namespace}.svc:{names.TENANT_PORT}"


def addresses(state: PoolState) -> list[str]:
    """Base URLs of the pool's Service: within the cluster, and outside where it has one."""
    if state.service is None:
        return []
    found = [_address(state)]
    balancer = (state.service.get("status") or {}).get("loadBalancer") or {}
    for ingress in balancer.get("ingress") or ():
        host = ingress.get("hostname") or ingress.get("ip")
        ports = [entry["port"] for entry in ingress.get("ports") or ()] or [names.TENANT_PORT]
        if host:
            found += [f"{state.route.scheme}://{host}:{port}" for port in ports]
    return found[:16]


def tenant_state_status(
    old: Json,
    verdict: TenantVerdict,
    pools: Sequence[str],
    now_seconds: float,
    urls: Sequence[str] = (),
) -> Json:
    """What changes at once in ``Tenant.status``; ``pools`` are those that serve it, at ``urls``."""
    ready = _tenant_ready(verdict, pools)
    return {
        "observedGeneration": verdict.generation,
        "pools": list(pools[:MAX_TENANT_POOLS]),
        "addresses": list(urls[:MAX_TENANT_POOLS]),
        "conditions": merge_conditions(
            old.get("conditions") or [],
            [*verdict.findings, ready],
            verdict.generation,
            now_seconds,
        ),
    }


def tier_state_status(
    old: Json,
    verdict: TierVerdict,
    pools: Sequence[str],
    tenants: int,
    now_seconds: float,
    slo: Sequence[Finding] | None = (),
) -> Json:
    """What changes at once in ``TenantTier.status``; ``slo`` as in that of a pool."""
    faulty = next((f for f in verdict.findings if f.status is ConditionStatus.FALSE), None)
    if faulty:
        ready = Finding(ConditionType.READY, ConditionStatus.FALSE, faulty.reason, faulty.message)
    else:
        text = f"{tenants} tenants, served by {len(pools)} pools"
        ready = Finding(ConditionType.READY, ConditionStatus.TRUE, Reason.READY, text)
    return {
        "observedGeneration": verdict.generation,
        "pools": list(pools[:MAX_POOLS]),
        "tenants": tenants,
        "conditions": merge_conditions(
            old.get("conditions") or [],
            [*verdict.findings, ready, *_slo_met(slo, old.get("conditions") or [])],
            verdict.generation,
            now_seconds,
        ),
    }


def _slo_met(slo: Sequence[Finding] | None, old: Sequence[Json]) -> Sequence[Finding]:
    """While it has still to be found out, what was said stays."""
    if slo is not None:
        return slo
    before = said_before(old, ConditionType.SLO_MET)
    return [before] if before else []


def _tenant_ready(verdict: TenantVerdict, pools: Sequence[str]) -> Finding:
    kind = ConditionType.READY
    faulty = [f for f in verdict.findings if f.status is ConditionStatus.FALSE]
    if faulty:
        text = joined(f.message for f in faulty)
        if pools:
            text = joined([text, f"what is in order of it is in force in {_listed(pools)}"])
        return Finding(kind, ConditionStatus.FALSE, faulty[0].reason, text)
    if verdict.stop is not None and verdict.stop != "None":
        text = f"spec.stop is {verdict.stop}; set it to None to serve"
        return Finding(kind, ConditionStatus.UNKNOWN, Reason.HELD, text)
    if not pools:
        text = (
            "No ServingPool serves this namespace in this tier; create one here, or let one "
            "select the namespace"
        )
        return Finding(kind, ConditionStatus.UNKNOWN, Reason.NO_POOL, text)
    return Finding(kind, ConditionStatus.TRUE, Reason.READY, f"Served by {_listed(pools)}")


def _listed(pools: Sequence[str]) -> str:
    shown, more = pools[:10], len(pools) - 10
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _policy_applied(state: PoolState, delivered: Delivered, old: Sequence[Json]) -> list[Finding]:
    kind = ConditionType.POLICY_APPLIED
    if state.delivery is None:
        return []
    if delivered.refusals:
        text = joined(delivered.refusals)
        return [Finding(kind, ConditionStatus.FALSE, Reason.POLICY_REFUSED, text)]
    if delivered.ready and not delivered.behind:
        text = "All ready sidecars run the newest policy"
        return [Finding(kind, ConditionStatus.TRUE, Reason.POLICY_APPLIED, text)]
    before = said_before(old, kind)
    if before and delivered.ready and delivered.pending_seconds < PATIENCE_SECONDS:
        return [before]
    text = joined(delivered.behind) or "no sidecar is ready"
    return [Finding(kind, ConditionStatus.UNKNOWN, Reason.POLICY_PENDING, f"Waiting for: {text}")]
