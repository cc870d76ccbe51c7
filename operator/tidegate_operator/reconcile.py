"""One pool brought to what its spec says: level-triggered, safe to run at any time, twice, or half.

Theory of operation. Each run reads everything anew: the world by LIST, the pool's children by GET.
It compiles, renders, and applies what differs, in an order in which every stop on the way leaves a
working pool: first the policy with what else pods need to start, then the ways to them, then the
pods themselves, and what measures them last. Sidecars are told as soon as the policy stands in its
Secrets (:mod:`tidegate_operator.pool_policy`): what is read, or fails, after that, such as
another's webhook, puts off no revocation. That first part can be done by itself
(:meth:`Reconciler.tell`), before the rest is looked at in any pool.

An object that the server refuses does not stop the others
(:mod:`tidegate_operator.pool_children`); the pool's conditions say which and why.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tidegate.scheduling.contracts import FALLBACK_GROUP, Policy
from tidegate_operator import names
from tidegate_operator.admin_port import Delivery
from tidegate_operator.api.common import FieldError, parse
from tidegate_operator.api.conditions import ConditionType, Reason
from tidegate_operator.api.serving_pool import PoolIdentity, ServingPool
from tidegate_operator.compile import CompiledPool, compile_pool, withdraw
from tidegate_operator.engine_groups import (
    Group,
    engine_groups,
    former_groups,
    leading_group,
    too_few,
)
from tidegate_operator.fallback import fallback_groups
from tidegate_operator.findings import Fault, joined, with_faults
from tidegate_operator.group_rollout import GroupPlan, plan_groups, stateful_sets_by_group
from tidegate_operator.kinds import (
    NETWORK_POLICY,
    POD_MONITOR,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    SERVING_POOL,
    STATEFUL_SET,
)
from tidegate_operator.kube import Forbidden, Json, Kube, KubeError, Unavailable
from tidegate_operator.metrics import Metrics
from tidegate_operator.pool_children import PoolChildren, owns
from tidegate_operator.pool_group import apply_group
from tidegate_operator.pool_monitoring import apply_monitoring
from tidegate_operator.pool_policy import shards_among, version_to_write, write_policy
from tidegate_operator.pool_router import LiveRouter, apply_router, remove_router
from tidegate_operator.pool_secrets import admin_token, pod_keys
from tidegate_operator.pool_state import pod_state
from tidegate_operator.reconciled import Heard, PoolState
from tidegate_operator.render import Children, render_children
from tidegate_operator.render.router import RouterChildren
from tidegate_operator.rollout_plan import running_sidecar_image
from tidegate_operator.routing import (
    ROUTED_SINCE_VERSION,
    Route,
    as_it_stays,
    is_routed,
    knows_routers,
    plan_route,
    speaks_tls,
)
from tidegate_operator.settings import Settings
from tidegate_operator.shards import read
from tidegate_operator.world import Key, World

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Told:
    """What the first part of a reconcile found and left."""

    compiled: CompiledPool
    service: Json | KubeError | None
    """The pool's as it was, or why it is not known."""
    delivery: Delivery | None
    identity_keys: str | None


class Reconciler:
    """Reconciles pools, one at a time each."""

    def __init__(self, kube: Kube, world: World, settings: Settings, metrics: Metrics) -> None:
        self._kube = kube
        self._world = world
        self._settings = settings
        self._metrics = metrics

    async def reconcile(self, key: Key, heard: Heard) -> PoolState | None:
        """Bring the pool to its spec; None where there is no such pool (any more)."""
        obj = await self._living(key)
        if obj is None:
            return None
        pool = parse(ServingPool, obj)
        if not isinstance(pool, ServingPool):
            return await self._withdraw(key, obj, pool, heard)
        return await self._apply(key, obj["metadata"]["generation"], pool, obj["spec"], heard)

    async def tell(self, key: Key, heard: Heard) -> None:
        """Only what of the pool's policy changed, to its Secrets and then to its sidecars. Faults
        are left to :meth:`reconcile`, which is to follow."""
        obj = await self._living(key)
        if obj is None:
            return
        pool = parse(ServingPool, obj)
        if isinstance(pool, ServingPool):
            await self._told(PoolChildren(self._kube, self._metrics, pool), pool, heard)
        else:
            await self._withdraw(key, obj, pool, heard)

    async def _living(self, key: Key) -> Json | None:
        """The pool as it is now, unless it is gone or going."""
        await self._world.refresh()
        obj = self._world.objects(SERVING_POOL).get(key)
        return None if obj is None or obj["metadata"].get("deletionTimestamp") else obj

    async def _withdraw(
        self, key: Key, obj: Json, errors: Sequence[FieldError], heard: Heard
    ) -> PoolState:
        """A pool that cannot be read goes on as it was, without what was revoked."""
        fault = Fault(ConditionType.ACCEPTED, Reason.INVALID, joined(map(str, errors)))
        pool = parse(PoolIdentity, obj)
        assert isinstance(pool, PoolIdentity)
        run = PoolChildren(self._kube, self._metrics, pool)
        secrets = await self._secrets(pool)
        shards = shards_among(secrets, pool)
        previous, judgement = read(shards.values()), self._world.judgement
        version = version_to_write(heard.reads_policy, previous)
        compiled = withdraw(previous, judgement, [fault], heard.generation, time.time(), version)
        delivery = None
        if compiled.policy is not None:
            token = await admin_token(run, secrets)
            delivery = await write_policy(run, compiled, shards, token)
        if delivery is not None:
            heard.deliver(delivery)
        return PoolState(
            key,
            pool.metadata.generation,
            None,
            compiled,
            delivery=delivery,
            identity_keys=heard.identity_keys,
            faults=(*compiled.faults, *run.faults),
            findings=compiled.findings,
        )

    async def _secrets(self, pool: PoolIdentity) -> dict[str, Json]:
        """Those that carry the pool's label, by name."""
        selector = f"{names.POOL_LABEL}={pool.metadata.name}"
        found = await self._kube.list(SECRET, pool.metadata.namespace, selector)
        return {secret["metadata"]["name"]: secret for secret in found}

    async def _told(self, run: PoolChildren, pool: ServingPool, heard: Heard) -> _Told:
        """The policy written and told, with what else pods need to start; the pool's Service as it
        is tells how clients come."""
        secrets, service = await asyncio.gather(self._secrets(pool), self._service(run))
        shards = shards_among(secrets, pool)
        previous = read(shards.values())
        routed = previous.policy is not None and previous.policy.routed
        if not isinstance(service, KubeError):
            routed = is_routed(pool.spec.router is not None, service)
        compiled = compile_pool(
            pool,
            self._world.judgement,
            previous,
            may_share=self._settings.may_share(pool.metadata.namespace),
            now_seconds=time.time(),
            seen_generation=heard.generation,
            version=version_to_write(heard.reads_policy, previous),
            routed=routed,
        )
        delivery, keys = None, heard.identity_keys
        if compiled.policy is not None:
            keys = await pod_keys(run, secrets, keys) or keys
            token = await admin_token(run, secrets)
            delivery = await write_policy(run, compiled, shards, token)
        if delivery is not None:
            heard.deliver(delivery)
        return _Told(compiled, service, delivery, keys)

    async def _apply(
        self, key: Key, generation: int, pool: ServingPool, spec: Json, heard: Heard
    ) -> PoolState:
        run = PoolChildren(self._kube, self._metrics, pool)
        told = await self._told(run, pool, heard)
        compiled, service = told.compiled, told.service
        live = await self._stateful_sets(pool)
        image = self._sidecar_image(pool, live)
        groups, gone = self._groups(key, pool, live, heard)
        state = PoolState(
            key,
            generation,
            pool,
            compiled,
            groups,
            live,
            delivery=told.delivery,
            identity_keys=told.identity_keys,
            sidecar_image=image,
        )
        if compiled.policy is not None:
            route = Route(pool.spec.router is not None, waits_for="the pool's Service to be read")
            if not isinstance(service, KubeError):
                route = self._route(pool, service, compiled.policy, heard)
            children = self._rendered(state, route)
            plans = plan_groups(children.groups, live, gone, spec)
            run.faults += [fault] if (fault := too_few(pool)) else []
            run.faults += dict.fromkeys(fault for group in plans for fault in group.plan.faults)
            state = replace(state, route=route)
            state = await self._apply_children(run, state, children, plans, service)
        faults = (*compiled.faults, *run.faults)
        return replace(state, faults=faults, findings=with_faults(compiled.findings, faults))

    async def _apply_children(
        self,
        run: PoolChildren,
        state: PoolState,
        children: Children,
        plans: Sequence[GroupPlan],
        service: Json | KubeError | None,
    ) -> PoolState:
        """The ways to the pods, and the pods; ``service`` is the pool's as it was."""
        pool, compiled = state.pool, state.compiled
        assert pool is not None
        assert compiled is not None
        assert compiled.policy is not None
        if isinstance(service, Unavailable):
            raise service
        if children.service_account is not None:
            await run.apply(SERVICE_ACCOUNT, children.service_account)
        before = None if isinstance(service, KubeError) else service
        await run.apply(SERVICE, children.headless_service)
        applied = await run.apply(SERVICE, children.service, before)
        if applied is None and not isinstance(service, KubeError):
            state = replace(state, route=as_it_stays(state.route, service))
            children = self._rendered(state, state.route)
            applied = service if service is not None and owns(pool, service) else None
        await run.apply(NETWORK_POLICY, children.network_policy)
        router = await self._router(run, pool, children.router, state.route)
        sets = {
            group.name: found
            for group in plans
            if (found := await apply_group(run, group, state.stateful_sets.get(group.name)))
            is not None
        }
        tiers, runbooks = compiled.policy.tiers, self._settings.runbooks
        await apply_monitoring(run, pool, tiers, children, self._world.serves, runbooks)
        return replace(
            state,
            stateful_sets=sets,
            service=applied,
            router=router,
            sidecar_image=self._sidecar_image(pool, sets),
            outdated=any(group.plan.outdated for group in plans),
        )

    def _groups(
        self, key: Key, pool: ServingPool, live: Mapping[str, Json], heard: Heard
    ) -> tuple[tuple[Group, ...], list[str]]:
        """All that have pods or are to have some, and the names of those that the spec has no
        more."""
        running = {group: int(found["spec"]["replicas"]) for group, found in live.items()}
        spare = fallback_groups(pool, running)
        running.pop(FALLBACK_GROUP, None)
        wanted = engine_groups(pool, running, heard.scaled)
        former = former_groups(pool, wanted, running, self._ready_by_group(key))
        gone = [*former, *(spare if pool.spec.fallback is None else ())]
        return (*wanted, *former, *spare), [group.name for group in gone]

    def _rendered(self, state: PoolState, route: Route) -> Children:
        assert state.pool is not None
        main = [group for group in state.groups if group.name != FALLBACK_GROUP]
        return render_children(
            state.pool,
            state.sidecar_image,
            self._settings.admin_namespaces,
            state.groups,
            leading_group(main, self._ready_by_group(state.key)),
            route,
        )

    async def _service(self, run: PoolChildren) -> Json | KubeError | None:
        """The pool's own, as it is, or why it is not known."""
        try:
            return await run.get(SERVICE, run.pool.metadata.name)
        except (Unavailable, Forbidden) as error:
            return error

    def _route(
        self, pool: ServingPool, service: Json | None, policy: Policy, heard: Heard
    ) -> Route:
        """How clients are to come to the pool from here on."""
        key = pool.metadata.namespace, pool.metadata.name
        now, router = time.time(), pool.spec.router
        engines, routers = (
            [pod for pod in pods if (state := pod_state(pod, now)).ready and not state.terminating]
            for pods in (self._world.pods_of(key), self._world.routers_of(key))
        )
        # What an earlier version of the sidecar has in its pod does not help it.
        unknown = policy.version < ROUTED_SINCE_VERSION
        route = plan_route(
            router is not None,
            service,
            routers_ready=len(routers),
            strangers=[
                pod["metadata"]["name"] for pod in engines if unknown or not knows_routers(pod)
            ],
            older_sidecars=unknown,
            unsigned_served=heard.in_force == policy.generation and not policy.routed,
            now_seconds=now,
        )
        wanted = router is not None and router.tls is not None
        return replace(route, tls=speaks_tls(wanted, routers, service))

    async def _router(
        self,
        run: PoolChildren,
        pool: ServingPool,
        children: RouterChildren | None,
        route: Route,
    ) -> LiveRouter | None:
        """Bring the router to what the pool wants, once no client comes by one that goes."""
        if children is not None:
            return await apply_router(run, pool, children)
        if not route.has_router:
            await remove_router(run, monitored=self._world.serves(POD_MONITOR))
        return None

    async def _stateful_sets(self, pool: PoolIdentity) -> dict[str, Json]:
        """The pool's own by engine group."""
        selector = f"{names.POOL_LABEL}={pool.metadata.name}"
        found = await self._kube.list(STATEFUL_SET, pool.metadata.namespace, selector)
        return stateful_sets_by_group([obj for obj in found if owns(pool, obj)])

    def _ready_by_group(self, key: Key) -> Counter[str]:
        pods = self._world.pod_states(key)
        return Counter(pod.group for pod in pods if pod.ready and not pod.terminating)

    def _sidecar_image(self, pool: ServingPool, live: Mapping[str, Json]) -> str:
        """The spec's, else what the pool already runs, else the operator's."""
        if pool.spec.sidecar and pool.spec.sidecar.image:
            return pool.spec.sidecar.image
        images = (running_sidecar_image(found) for found in live.values())
        return next(filter(None, images), self._settings.sidecar_image)
