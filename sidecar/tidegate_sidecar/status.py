"""``GET /status``: the sidecar as the operator reads it."""

from __future__ import annotations

from tidegate.scheduling.contracts import (
    POLICY_VERSION,
    STATUS_VERSION,
    EngineStatus,
    GateStatus,
    SidecarStatus,
    TenantStatus,
    TierStatus,
)
from tidegate.scheduling.outcomes import Outcome
from tidegate_sidecar.runtime import Runtime


def status_of(runtime: Runtime) -> SidecarStatus | None:
    """The status; None while no policy is in force."""
    in_force, dispatcher = runtime.in_force, runtime.dispatcher
    if in_force is None or dispatcher.scheduler is None or dispatcher.gate is None:
        return None
    figures = runtime.engine_figures
    return SidecarStatus(
        version=STATUS_VERSION,
        pool=in_force.policy.pool,
        started_at=runtime.started_at,
        policy_generation=in_force.policy.generation,
        policy_error=runtime.policy_error,
        scheduling_mode=in_force.policy.scheduling_mode,
        draining=dispatcher.draining,
        engine=EngineStatus(
            ready=dispatcher.engine_ready,
            running=figures.running,
            waiting=figures.waiting,
            kv_used_ratio=figures.kv_used_ratio,
            kv_blocks=figures.kv_blocks,
            kv_block_tokens=figures.kv_block_tokens,
        ),
        gate=GateStatus(window=dispatcher.gate.window, not_started=dispatcher.gate.not_started),
        tiers=_tiers(runtime),
        tenants=_tenants(runtime),
        reads_policy=POLICY_VERSION,
    )


def _tiers(runtime: Runtime) -> tuple[TierStatus, ...]:
    scheduler = runtime.dispatcher.scheduler
    assert scheduler is not None
    rows = []
    for tier in scheduler.tier_snapshots():
        tally = runtime.tally.tiers[tier.name]
        rows.append(
            TierStatus(
                name=tier.name,
                queued=tier.queued,
                running=tier.running,
                service_tokens_total=tier.service_tokens_total,
                requests_total=_by_outcome(tally.outcomes),
                queue_seconds=tally.queue.histogram(),
                ttft_seconds=tally.ttft.histogram(),
                duration_seconds=tally.duration.histogram(),
            )
        )
    return tuple(rows)


def _tenants(runtime: Runtime) -> tuple[TenantStatus, ...]:
    scheduler = runtime.dispatcher.scheduler
    assert scheduler is not None
    rows = []
    for tenant in scheduler.tenant_snapshots(runtime.dispatcher.loop.time()):
        tally = runtime.tally.tenants.get(tenant.name)
        if tally is None or not (tally.outcomes or tenant.queued or tenant.running):
            continue
        rows.append(
            TenantStatus(
                name=tenant.name,
                tier=tenant.tier,
                queued=tenant.queued,
                running=tenant.running,
                service_tokens_total=tenant.service_tokens_total,
                requests_total=_by_outcome(tally.outcomes),
                last_refusal=tally.last_refusal,
                ttft_seconds=None if tally.ttft is None else tally.ttft.histogram(),
            )
        )
    return tuple(rows)


def _by_outcome(counts: dict[Outcome, int]) -> dict[str, int]:
    return {outcome.value: count for outcome, count in counts.items()}
