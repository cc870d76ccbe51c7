"""From custom resources to what the sidecars of one pool read: pure, and the same every time.

``compile_pool`` takes a pool, the judgement over all tiers and tenants, and what the pool's
sidecars were last given; it returns policy and keys of one generation, and what the pool's owner
must know. Equal content keeps the generation, other content gets the next one, whoever computes it:
a restarted operator continues where the last one stopped. Where nothing is known of an earlier
generation (a new pool, or its Secrets were deleted under running sidecars), counting starts at the
present second, above anything that one change a second could have reached.

**Last good rows.** A Tenant without a usable claim keeps the row that this pool last served it
with, as long as nothing in it was taken away: its tier must still be served here and allow the
namespace, weight and rate limits are cut to what the tier allows now; ``stop``, models and keys are
the present ones.
A pool whose tiers cannot be combined (reservations above 100%) keeps the tiers it had. A pool that
cannot be compiled at all, or has no tier left, keeps what it served last, less what was taken away
since (:func:`withdraw`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from tidegate.scheduling.contracts import (
    KEYS_VERSION,
    POLICY_VERSION,
    BetweenTiers,
    KeySet,
    KvPool,
    ModelPolicy,
    Observability,
    Policy,
    SchedulingMode,
    SharedState,
    Stop,
    Task,
    TenantPolicy,
    TierPolicy,
    as_of,
)
from tidegate_operator.api.conditions import ConditionType, Reason
from tidegate_operator.api.fields import duration_seconds
from tidegate_operator.api.serving_pool import ServingPool
from tidegate_operator.engine_args import engine_limits, media_domains
from tidegate_operator.findings import Fault, Finding, verdicts
from tidegate_operator.group_policy import fallback_policy, group_policies, unknown_tiers
from tidegate_operator.judge import Judgement, TenantVerdict
from tidegate_operator.kv_policy import kv_pools, prefill_limits
from tidegate_operator.names import SHARED_STATE_SECRET
from tidegate_operator.served_namespaces import not_allowed, served_namespaces
from tidegate_operator.shards import Previous, TooManyTenants, cut
from tidegate_operator.tier_policy import combine_tiers


@dataclass(frozen=True, slots=True)
class CompiledPool:
    """What one pool's sidecars are to run, and what was found about the pool."""

    policy: Policy | None
    """Unset: nothing could ever be served; there is no last good policy either."""
    keys: KeySet | None
    faults: tuple[Fault, ...]
    findings: tuple[Finding, ...]
    documents: tuple[tuple[str, str], ...] = ()
    """Policy and keys cut into shards."""
    lost: tuple[str, ...] = ()
    """Fields of the policy that are set and that the pool's sidecars cannot read yet."""

    @property
    def tier_names(self) -> tuple[str, ...]:
        return tuple(tier.name for tier in self.policy.tiers) if self.policy else ()

    @property
    def tenant_names(self) -> tuple[str, ...]:
        return tuple(tenant.name for tenant in self.policy.tenants) if self.policy else ()


def compile_pool(
    pool: ServingPool,
    judgement: Judgement,
    previous: Previous,
    *,
    may_share: bool,
    now_seconds: float,
    seen_generation: int = 0,
    version: int = POLICY_VERSION,
    routed: bool = False,
) -> CompiledPool:
    """Compile one pool; ``may_share`` lets it serve Tenants of other namespaces, ``routed`` says
    that all its clients come by its router.

    ``seen_generation`` is the highest that any of its sidecars reported: above the one in the
    Secrets it means that those were lost, and the next one must be above it. ``version`` is that
    of the policy that all of its sidecars read.
    """
    namespaces = served_namespaces(pool, judgement, may_share)
    tiers, tier_faults = combine_tiers(pool, judgement, previous, namespaces)
    faults = [*not_allowed(pool, may_share), *tier_faults]
    if not tiers:
        return withdraw(
            previous, judgement, faults, seen_generation, now_seconds, version, namespaces, routed
        )
    served = [tenant for tenant in judgement.tenants.values() if tenant.namespace in namespaces]
    names = {tier.name for tier in tiers}
    parts, kv_faults = kv_pools(pool, names)
    faults += [*kv_faults, *unknown_tiers(pool, names)]
    rows = {tenant.name: _row(tenant, names, judgement, previous) for tenant in served}
    if pool.spec.shared_state is not None:
        uids = {tenant.name: tenant.uid for tenant in served}
        rows = {name: row and replace(row, uid=uids[name]) for name, row in rows.items()}
    tenants = tuple(row for row in rows.values() if row is not None)
    policy = _policy(pool, tiers, tenants, parts, routed=routed)
    keys = _keys(tenant for tenant in served if rows[tenant.name] is not None)
    policy, lost = as_of(policy, version)
    generation = _generation(policy, keys, previous, seen_generation, now_seconds)
    try:
        return replace(_compiled(policy, keys, generation, faults), lost=lost)
    except TooManyTenants as error:
        text = f"{error}; spread them over more pools"
        faults.append(Fault(ConditionType.ACCEPTED, Reason.INVALID, text))
        return withdraw(
            previous, judgement, faults, seen_generation, now_seconds, version, namespaces, routed
        )


def withdraw(
    previous: Previous,
    judgement: Judgement,
    faults: Sequence[Fault],
    seen_generation: int,
    now_seconds: float,
    version: int,
    namespaces: Collection[str] | None = None,
    routed: bool | None = None,
) -> CompiledPool:
    """What the pool served last less what was taken away, where its present spec cannot be used;
    ``namespaces`` are those whose Tenants it serves, ``routed`` is how they come; unset: as
    before."""
    policy, keys = previous.policy, previous.keys
    if policy is None or keys is None:
        return CompiledPool(None, None, tuple(faults), _findings(faults, 0, 0))
    tiers = {tier.name for tier in policy.tiers}
    verdicts_of = {row.name: judgement.tenants.get(row.name) for row in policy.tenants}
    rows = {
        name: _last_good_row(verdict, tiers, judgement, previous)
        for name, verdict in verdicts_of.items()
        if verdict is not None and (namespaces is None or verdict.namespace in namespaces)
    }
    granted = {
        digest: name
        for digest, name in keys.keys.items()
        if rows.get(name) and digest in judgement.tenants[name].digests
    }
    policy = replace(
        policy,
        version=version,
        tenants=tuple(row for row in rows.values() if row),
        routed=policy.routed if routed is None else routed,
    )
    policy, _ = as_of(policy, version)
    keys = replace(keys, keys=granted)
    generation = _generation(policy, keys, previous, seen_generation, now_seconds)
    return _compiled(policy, keys, generation, faults)


def _policy(
    pool: ServingPool,
    tiers: tuple[TierPolicy, ...],
    tenants: tuple[TenantPolicy, ...],
    parts: tuple[KvPool, ...],
    *,
    routed: bool,
) -> Policy:
    """What the spec says of these, as the newest version has it."""
    spec, names = pool.spec, [tier.name for tier in tiers]
    engine = engine_limits(spec.engine.args or (), spec.model.task)
    return Policy(
        version=POLICY_VERSION,
        generation=0,
        pool=f"{pool.metadata.namespace}/{pool.metadata.name}",
        model=ModelPolicy(
            spec.model.name,
            spec.model.task or Task.GENERATE,
            spec.model.max_model_len,
            media_domains(spec.engine.args or ()),
        ),
        tiers=tiers,
        tenants=tenants,
        scheduling_mode=spec.scheduling_mode or SchedulingMode.TIDEGATE,
        between_tiers=spec.between_tiers or BetweenTiers.STRICT,
        engine=engine,
        kv_pools=parts,
        prefill=prefill_limits(pool),
        observability=_observability(pool),
        shared_state=_shared_state(pool),
        routed=routed,
        engine_groups=group_policies(pool, names, parts),
        fallback=fallback_policy(pool, names, parts, engine),
        stream_keep_alive_seconds=_stream_keep_alive_seconds(pool),
    )


def _keys(tenants: Iterable[TenantVerdict]) -> KeySet:
    owners = sorted((digest, tenant.name) for tenant in tenants for digest in tenant.digests)
    return KeySet(KEYS_VERSION, 0, dict(owners))


def _compiled(
    policy: Policy, keys: KeySet, generation: int, faults: Sequence[Fault]
) -> CompiledPool:
    policy, keys = replace(policy, generation=generation), replace(keys, generation=generation)
    return CompiledPool(
        policy,
        keys,
        tuple(faults),
        _findings(faults, len(policy.tiers), len(policy.tenants)),
        tuple(cut(policy, keys)),
    )


def _observability(pool: ServingPool) -> Observability:
    watched = pool.spec.observability
    if watched is None or watched.otlp is None:
        return Observability()
    percent = watched.otlp.sample_percent
    return Observability(watched.otlp.endpoint, 100 if percent is None else percent)


def _shared_state(pool: ServingPool) -> SharedState | None:
    shared = pool.spec.shared_state
    if shared is None:
        return None
    return SharedState(
        shared.address, SHARED_STATE_SECRET if shared.secret_ref else None, pool.metadata.uid
    )


def _stream_keep_alive_seconds(pool: ServingPool) -> float | None:
    service = pool.spec.service
    if service is None or service.stream_keep_alive is None:
        return None
    return duration_seconds(service.stream_keep_alive)


def _row(
    tenant: TenantVerdict, tiers: set[str], judgement: Judgement, previous: Previous
) -> TenantPolicy | None:
    """The tenant's row in this pool; None: it is not served here."""
    if tenant.claim is not None:
        if tenant.claim.tier not in tiers:
            return None
        stop = tenant.stop or Stop.NONE
        claim, models = tenant.claim, tenant.models or ()
        limits, scope = claim.rate_limits, tenant.cache_scope
        return TenantPolicy(
            tenant.name, claim.tier, claim.weight, stop, limits, models, cache_scope=scope
        )
    return _last_good_row(tenant, tiers, judgement, previous)


def _last_good_row(
    tenant: TenantVerdict, tiers: set[str], judgement: Judgement, previous: Previous
) -> TenantPolicy | None:
    """The row that this pool last served the tenant with, less what was taken away since."""
    last = previous.rows.get(tenant.name)
    if last is None or last.tier not in tiers:
        return None
    tier = judgement.tiers.get(last.tier)
    if tier is None:
        return None
    models = last.models if tenant.models is None else tenant.models
    scope = tenant.cache_scope or last.cache_scope
    last = replace(last, stop=tenant.stop or last.stop, models=models, cache_scope=scope)
    if tier.tier is None:
        return last
    if not judgement.tier_allows(last.tier, tenant.namespace):
        return None
    loose = tier.too_loose(last.rate_limits)
    limits = tuple(limit for limit in last.rate_limits if limit.name not in loose)
    return replace(last, weight=min(last.weight, tier.max_weight), rate_limits=limits)


def _generation(
    policy: Policy, keys: KeySet, previous: Previous, seen: int, now_seconds: float
) -> int:
    last = max(previous.generation, seen)
    if last == 0:
        return int(now_seconds)
    same = replace(policy, generation=last), replace(keys, generation=last)
    return last if same == (previous.policy, previous.keys) else last + 1


def _findings(faults: Sequence[Fault], tiers: int, tenants: int) -> tuple[Finding, ...]:
    accepted, resolved = verdicts(
        faults,
        f"Serves {tenants} tenants in {tiers} tiers",
        "All references were found",
    )
    if not faults and tenants == 0:
        accepted = replace(
            accepted,
            reason=Reason.NO_TENANTS,
            message="No Tenant is served, so nobody can call the pool; create a Tenant in a "
            "namespace that the pool serves and in one of its tiers",
        )
    return accepted, resolved
