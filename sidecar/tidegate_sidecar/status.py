"""``GET /status``: the sidecar as the operator reads it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tidegate.scheduling.contracts import (
    POLICY_VERSION,
    STATUS_VERSION,
    EngineStatus,
    GateStatus,
    KvPoolStatus,
    SidecarStatus,
    SloStatus,
    TenantStatus,
    TierStatus,
    TrafficSample,
)
from tidegate.scheduling.limit_window import Clocks
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.snapshots import TenantSnapshot
from tidegate_sidecar.runtime import Runtime


def status_of(runtime: Runtime) -> SidecarStatus | None:
    """The status; None while no policy is in force."""
    in_force, dispatcher = runtime.in_force, runtime.dispatcher
    gate = dispatcher.in_flight.gate
    if in_force is None or dispatcher.scheduler is None or gate is None:
        return None
    figures = runtime.engine_figures
    tenants = dispatcher.scheduler.tenant_snapshots(dispatcher.loop.time())
    return SidecarStatus(
        version=STATUS_VERSION,
        pool=in_force.policy.pool,
        started_at=runtime.started_at,
        policy_generation=in_force.policy.generation,
        policy_error=runtime.policy_error,
        scheduling_mode=in_force.policy.scheduling_mode,
        draining=dispatcher.departure.over,
        engine=EngineStatus(
            ready=dispatcher.engine_ready,
            running=figures.running,
            waiting=figures.waiting,
            kv_used_ratio=figures.kv_used_ratio,
            kv_blocks=figures.kv_blocks,
            kv_block_tokens=figures.kv_block_tokens,
            metrics_error=runtime.engine_untold.lasting(dispatcher.loop.time()),
        ),
        gate=GateStatus(window=gate.window, not_started=gate.not_started),
        shared_state=runtime.shared_state.status,
        tiers=_tiers(runtime, tenants),
        tenants=_tenants(runtime, tenants),
        kv_pools=_kv_pools(runtime),
        reads_policy=POLICY_VERSION,
        last_sample=_last_sample(runtime),
    )


def _last_sample(runtime: Runtime) -> TrafficSample | None:
    samples = runtime.reports.profile.samples
    if not samples:
        return None
    newest = samples[-1]
    return TrafficSample(newest.name, newest.tier, newest.at, newest.p99_over_baseline)


def _tiers(runtime: Runtime, tenants: Sequence[TenantSnapshot]) -> tuple[TierStatus, ...]:
    scheduler = runtime.dispatcher.scheduler
    assert scheduler is not None
    plugin = runtime.plugin
    figures = None if plugin is None else plugin.steps.figures
    held = (runtime.dispatcher.in_flight.places if plugin is None else plugin.steps).held_by_tier()
    oldest: dict[str, float] = {}
    for tenant in tenants:
        oldest[tenant.tier] = max(oldest.get(tenant.tier, 0.0), tenant.longest_wait_seconds)
    rows = []
    for tier in scheduler.tier_snapshots():
        tally = runtime.tally.tiers[tier.name]
        rows.append(
            TierStatus(
                name=tier.name,
                queued=tier.queued,
                running=tier.running,
                oldest_wait_seconds=oldest.get(tier.name, 0.0),
                service_tokens_total=tier.service_tokens_total,
                requests_total=_by_outcome(tally.outcomes),
                queue_seconds=tally.queue.histogram(),
                ttft_seconds=tally.ttft.histogram(),
                duration_seconds=tally.duration.histogram(),
                inter_token_seconds=tally.inter_token.histogram(),
                engine_time_ms_total=tier.engine_ms_total,
                slo=tuple(
                    SloStatus(metric, count.requests, count.good, count.refused)
                    for metric, count in tally.slo.counts.items()
                ),
                preemptions_total=tally.preemptions,
                vft_skew_flagged_total=sum(tally.skew_flagged.values()),
                prompts_truncated_total=tally.truncated,
                prompts_best_effort_total=tally.best_effort,
                drafted_tokens_total=figures.drafted_total.get(tier.name, 0) if figures else 0,
                accepted_tokens_total=figures.accepted_total.get(tier.name, 0) if figures else 0,
                kv_held_blocks=held.get(tier.name),
                max_service_gap=runtime.service_gap.by_tier.get(tier.name, 0.0),
            )
        )
    return tuple(rows)


def _tenants(runtime: Runtime, tenants: Sequence[TenantSnapshot]) -> tuple[TenantStatus, ...]:
    scheduler = runtime.dispatcher.scheduler
    assert scheduler is not None
    clocks = Clocks(runtime.dispatcher.loop.time(), time.time())
    rows = []
    for tenant in tenants:
        tally = runtime.tally.tenants.get(tenant.name)
        if tally is None or not (tally.outcomes or tenant.queued or tenant.running):
            continue
        rows.append(
            TenantStatus(
                name=tenant.name,
                tier=tenant.tier,
                queued=tenant.queued,
                running=tenant.running,
                oldest_wait_seconds=tenant.longest_wait_seconds,
                service_tokens_total=tenant.service_tokens_total,
                requests_total=_by_outcome(tally.outcomes),
                last_refusal=tally.last_refusal,
                ttft_seconds=None if tally.ttft is None else tally.ttft.histogram(),
                engine_time_ms_total=tenant.engine_ms_total,
                limits=scheduler.standings.limits_of(tenant.name, clocks),
            )
        )
    return tuple(rows)


def _kv_pools(runtime: Runtime) -> tuple[KvPoolStatus, ...]:
    if (plugin := runtime.plugin) is not None:
        return tuple(
            KvPoolStatus(
                pool.name,
                pool.nominal_blocks,
                pool.held_blocks,
                max(pool.held_blocks - pool.nominal_blocks, 0),
            )
            for pool in plugin.steps.pools()
        )
    return tuple(KvPoolStatus(*pool) for pool in runtime.dispatcher.in_flight.places.pools())


def _by_outcome(counts: dict[Outcome, int]) -> dict[str, int]:
    return {outcome.value: count for outcome, count in counts.items()}
