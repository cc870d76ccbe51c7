"""One pool brought to what its spec says: level-triggered, safe to run at any time, twice, or half.

Theory of operation. Each run reads everything anew: the world by LIST, the pool's children by GET.
It compiles, renders, and applies what differs, in an order in which every stop on the way leaves a
working pool: first what pods need (account, token, policy), the StatefulSet last. The first shard
of the policy is written under its ``resourceVersion``: who writes it owns the generation, and
another operator that worked from the same reading gets a conflict and reads again. Sidecars are
told only what stands in the Secrets.

An object that the server refuses does not stop the others; the pool's conditions say which and why.
Objects that exist already and are not the pool's own are never taken over.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import logging
import secrets as tokens
import time
from dataclasses import dataclass, field, replace

from tidegate.scheduling.contracts import POLICY_VERSION, Bundle, Policy, dumps
from tidegate_operator import names
from tidegate_operator.api.common import parse
from tidegate_operator.api.conditions import ConditionType, Reason
from tidegate_operator.api.serving_pool import PoolIdentity, ServingPool
from tidegate_operator.apply import in_sync
from tidegate_operator.compile import CompiledPool, compile_pool, withdraw
from tidegate_operator.findings import Fault, Finding, joined, with_faults
from tidegate_operator.kube import (
    NETWORK_POLICY,
    POD_DISRUPTION_BUDGET,
    POD_MONITOR,
    PROMETHEUS_RULE,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    SERVING_POOL,
    STATEFUL_SET,
    Forbidden,
    Invalid,
    Json,
    Kind,
    Kube,
    NotFound,
)
from tidegate_operator.metrics import Metrics
from tidegate_operator.render import admin_token_secret, policy_secrets, render_children
from tidegate_operator.render.policy_secrets import ADMIN_TOKEN_FILE
from tidegate_operator.rollout_plan import (
    RolloutPlan,
    cold_digest,
    plan_rollout,
    running_sidecar_image,
)
from tidegate_operator.settings import Settings
from tidegate_operator.shards import Previous, read
from tidegate_operator.sidecars import Delivery
from tidegate_operator.slo import prometheus_rule
from tidegate_operator.world import Key, World

log = logging.getLogger(__name__)


class WaitForCollection(Exception):
    """Children of a deleted pool of the same name are still being removed."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool as its last reconcile left it."""

    key: Key
    generation: int
    """metadata.generation that was looked at."""
    pool: ServingPool | None
    """Unset: the spec cannot be read."""
    compiled: CompiledPool | None
    stateful_set: Json | None = None
    service: Json | None = None
    delivery: Delivery | None = None
    sidecar_image: str = ""
    outdated: bool = False
    """Its pods are as an earlier version of the operator rendered them."""
    faults: tuple[Fault, ...] = ()
    """Of the spec, and of applying it."""
    findings: tuple[Finding, ...] = ()
    """Accepted and ResolvedRefs."""

    @property
    def name(self) -> str:
        return "/".join(self.key)


@dataclass(slots=True)
class _Run:
    """One reconcile of one pool."""

    pool: PoolIdentity
    faults: list[Fault] = field(default_factory=list)


class Reconciler:
    """Reconciles pools, one at a time each."""

    def __init__(self, kube: Kube, world: World, settings: Settings, metrics: Metrics) -> None:
        self._kube = kube
        self._world = world
        self._settings = settings
        self._metrics = metrics

    async def reconcile(
        self, key: Key, seen_generation: int = 0, reads_policy: int | None = None
    ) -> PoolState | None:
        """Bring the pool to its spec; None where there is no such pool (any more).

        ``reads_policy`` is the version of the policy that all of its sidecars read; unset: it is
        not known, so it stays what it was.
        """
        await self._world.refresh()
        obj = self._world.objects(SERVING_POOL).get(key)
        if obj is None or obj["metadata"].get("deletionTimestamp"):
            return None
        generation = obj["metadata"]["generation"]
        pool = parse(ServingPool, obj)
        if not isinstance(pool, ServingPool):
            fault = Fault(ConditionType.ACCEPTED, Reason.INVALID, joined(map(str, pool)))
            return await self._withdraw(key, obj, fault, seen_generation, reads_policy)
        digest = cold_digest(obj["spec"])
        return await self._apply(key, generation, pool, digest, seen_generation, reads_policy)

    async def _withdraw(
        self, key: Key, obj: Json, fault: Fault, seen_generation: int, reads_policy: int | None
    ) -> PoolState:
        """A pool that cannot be read goes on as it was, without what was revoked."""
        pool = parse(PoolIdentity, obj)
        assert isinstance(pool, PoolIdentity)
        run = _Run(pool)
        shards = await self._shards(pool)
        previous, judgement = read(shards.values()), self._world.judgement
        version = _version(reads_policy, previous)
        compiled = withdraw(previous, judgement, [fault], seen_generation, time.time(), version)
        delivery = None
        if compiled.policy is not None:
            token = await self._admin_token(run)
            delivery = await self._write_policy(run, compiled, shards, token)
        return PoolState(
            key,
            pool.metadata.generation,
            None,
            compiled,
            delivery=delivery,
            faults=(*compiled.faults, *run.faults),
            findings=compiled.findings,
        )

    async def _shards(self, pool: PoolIdentity) -> dict[str, Json]:
        """The pool's own policy Secrets by name."""
        selector = f"{names.POOL_LABEL}={pool.metadata.name}"
        own = await self._kube.list(SECRET, pool.metadata.namespace, selector)
        return {s["metadata"]["name"]: s for s in own if _is_policy(s, pool)}

    async def _apply(
        self,
        key: Key,
        generation: int,
        pool: ServingPool,
        digest: str,
        seen_generation: int,
        reads_policy: int | None,
    ) -> PoolState:
        namespace, name = key
        run = _Run(pool)
        shards = await self._shards(pool)
        previous = read(shards.values())
        compiled = compile_pool(
            pool,
            self._world.judgement,
            previous,
            may_share=self._settings.may_share(namespace),
            now_seconds=time.time(),
            seen_generation=seen_generation,
            version=_version(reads_policy, previous),
        )
        stateful_set = await self._kube.get(STATEFUL_SET, name, namespace)
        image = self._sidecar_image(pool, stateful_set)
        state = PoolState(key, generation, pool, compiled, stateful_set, sidecar_image=image)
        if compiled.policy is not None and compiled.keys is not None:
            children = render_children(pool, image, self._settings.admin_namespaces)
            plan = plan_rollout(children.stateful_set, stateful_set, children.conflicts, digest)
            run.faults.extend(plan.faults)
            if children.service_account is not None:
                await self._child(run, SERVICE_ACCOUNT, children.service_account)
            token = await self._admin_token(run)
            delivery = await self._write_policy(run, compiled, shards, token)
            await self._child(run, SERVICE, children.headless_service)
            service = await self._child(run, SERVICE, children.service)
            await self._child(run, NETWORK_POLICY, children.network_policy)
            await self._child(run, POD_DISRUPTION_BUDGET, children.disruption_budget)
            await self._monitoring(run, pool, compiled.policy, children.pod_monitor)
            applied = await self._pods(run, plan, stateful_set)
            state = replace(
                state,
                stateful_set=applied or stateful_set,
                service=service,
                delivery=delivery,
                sidecar_image=running_sidecar_image(applied) or image,
                outdated=plan.outdated,
            )
        faults = (*compiled.faults, *run.faults)
        return replace(state, faults=faults, findings=with_faults(compiled.findings, faults))

    async def _monitoring(
        self, run: _Run, pool: ServingPool, policy: Policy, pod_monitor: Json
    ) -> None:
        """What the Prometheus operator reads, where the cluster has its kinds."""
        with contextlib.suppress(NotFound):  # a kind went away since
            if self._world.serves(POD_MONITOR):
                await self._child(run, POD_MONITOR, pod_monitor)
            if self._world.serves(PROMETHEUS_RULE):
                observability = pool.spec.observability
                labels = (observability and observability.rule_labels) or {}
                rule = prometheus_rule(pool, policy.tiers, labels, self._settings.runbooks)
                if rule is not None:
                    await self._child(run, PROMETHEUS_RULE, rule)
                else:
                    await self._no_child(run, PROMETHEUS_RULE, pool.metadata.name)

    def _sidecar_image(self, pool: ServingPool, stateful_set: Json | None) -> str:
        """The spec's, else what the pool already runs, else the operator's."""
        if pool.spec.sidecar and pool.spec.sidecar.image:
            return pool.spec.sidecar.image
        return running_sidecar_image(stateful_set) or self._settings.sidecar_image

    async def _pods(self, run: _Run, plan: RolloutPlan, live: Json | None) -> Json | None:
        """Apply the StatefulSet, with new pods only where the API server would take them."""
        wanted = plan.stateful_set
        if plan.pod is not None and (why := await self._kube.refusal(plan.pod)):
            text = (
                f"spec.engine: the cluster refuses such pods, so those that run stay as they are: "
                f"{why}"
            )
            run.faults.append(Fault(ConditionType.ACCEPTED, Reason.POD_REFUSED, text))
            wanted = plan.last_good
        return await self._child(run, STATEFUL_SET, wanted, live) if wanted else None

    async def _child(
        self, run: _Run, kind: Kind, desired: Json, live: Json | None = None
    ) -> Json | None:
        """Apply one child where it differs; None where that was refused (and noted)."""
        metadata = desired["metadata"]
        try:
            if live is None:
                live = await self._kube.get(kind, metadata["name"], metadata["namespace"])
            if live is not None:
                if not self._owns(run, kind, live):
                    return None
                if in_sync(desired, live):
                    return live
            applied = await self._kube.apply(kind, desired)
        except (Invalid, Forbidden) as error:
            text = f"{kind.name} {metadata['name']} was refused: {error}"
            run.faults.append(Fault(ConditionType.READY, Reason.APPLY_FAILED, text))
            return None
        self._metrics.applies.labels(kind.name).inc()
        log.info("applied", extra={"object": f"{kind.name}/{metadata['name']}", "pool": _name(run)})
        return applied

    async def _no_child(self, run: _Run, kind: Kind, name: str) -> None:
        """Delete the pool's own child of that name, if there is one."""
        try:
            live = await self._kube.get(kind, name, run.pool.metadata.namespace)
            if live is not None and _is_owner(run.pool, live):
                await self._kube.delete(kind, live)
                self._metrics.applies.labels(kind.name).inc()
        except Forbidden as error:
            text = f"{kind.name} {name} could not be removed: {error}"
            run.faults.append(Fault(ConditionType.READY, Reason.APPLY_FAILED, text))

    def _owns(self, run: _Run, kind: Kind, live: Json) -> bool:
        """Whether the object is this pool's; notes it where it is somebody else's."""
        metadata = live["metadata"]
        owners = metadata.get("ownerReferences") or ()
        if _is_owner(run.pool, live):
            return True
        if any(
            owner["kind"] == SERVING_POOL.name and owner["name"] == run.pool.metadata.name
            for owner in owners
        ):
            raise WaitForCollection(
                f"{kind.name} {metadata['name']} of the former pool is not collected yet"
            )
        text = (
            f"{kind.name} {metadata['name']} exists and is not this pool's; delete it, or give the "
            "pool another name"
        )
        run.faults.append(Fault(ConditionType.READY, Reason.APPLY_FAILED, text))
        return False

    async def _admin_token(self, run: _Run) -> str | None:
        """The token of the pool's admin ports, made where there is none."""
        name, namespace = names.admin_secret(run.pool.metadata.name), run.pool.metadata.namespace
        live = await self._kube.get(SECRET, name, namespace)
        token = _token_in(live)
        if token is None:
            token = tokens.token_urlsafe(32)
            if live is None:
                # Create and not apply: of two operators one makes it, the other reads again.
                desired = admin_token_secret(run.pool, token)
                live = await self._kube.create(SECRET, desired)
        applied = await self._child(run, SECRET, admin_token_secret(run.pool, token), live)
        return token if applied is not None else None

    async def _write_policy(
        self, run: _Run, compiled: CompiledPool, live: dict[str, Json], token: str | None
    ) -> Delivery | None:
        """Write what differs of the shards; what the sidecars are to be told then."""
        policy, keys = compiled.policy, compiled.keys
        assert policy is not None
        assert keys is not None
        desired = policy_secrets(run.pool, compiled.documents)
        for index, secret in enumerate(desired):
            name = secret["metadata"]["name"]
            old = live.get(name)
            if index == 0 and old is not None and not in_sync(secret, old):
                secret["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
            if await self._child(run, SECRET, secret, old) is None:
                return None
        wanted = {secret["metadata"]["name"] for secret in desired}
        for name in sorted(live.keys() - wanted):
            await self._kube.delete(SECRET, live[name])
            self._metrics.applies.labels(SECRET.name).inc()
        if token is None:
            return None
        return Delivery(policy.generation, dumps(Bundle(policy, keys)).encode(), token)


def _version(reads_policy: int | None, previous: Previous) -> int:
    """Of the policy to write: the highest that both its writer and its readers know."""
    return min(POLICY_VERSION, reads_policy or previous.version)


def _is_policy(secret: Json, pool: PoolIdentity) -> bool:
    labels = secret["metadata"]["labels"]
    return labels.get(names.COMPONENT_LABEL) == names.POLICY and _is_owner(pool, secret)


def _is_owner(pool: PoolIdentity, child: Json) -> bool:
    owners = child["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == pool.metadata.uid for owner in owners)


def _token_in(secret: Json | None) -> str | None:
    encoded = ((secret or {}).get("data") or {}).get(ADMIN_TOKEN_FILE, "")
    try:
        return base64.b64decode(encoded, validate=True).decode("ascii").strip() or None
    except (binascii.Error, UnicodeDecodeError):
        return None


def _name(run: _Run) -> str:
    return f"{run.pool.metadata.namespace}/{run.pool.metadata.name}"
