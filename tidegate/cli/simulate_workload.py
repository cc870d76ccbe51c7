"""The workload of `tidegate simulate`, and the policy with a row for each of its tenants.

A scenario's tenant is the Tenant whose key it has, else the one of its name (with or without the
namespace), else a new one of weight 1 in the tier of its tier's name. A built-in workload brings
tenants of its own for tiers called t0 to t3. The policy that is simulated has exactly the
workload's tenants, under the names that the workload gives them: nobody else sends.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tidegate import workload as scenarios
from tidegate.cli.errors import CommandError
from tidegate.cli.policy_files import PolicyInput
from tidegate.scheduling.contracts import (
    BuiltInWorkload,
    Endpoint,
    Policy,
    TenantLoad,
    TenantPolicy,
)
from tidegate.workload import ScenarioError, TraceError, read_scenario
from tidegate.workload.clients import Workload
from tidegate.workload.clients.built_in import BUILT_IN
from tidegate.workload.clients.scenario import from_scenario

BUILT_IN_SECONDS = 600.0
BUILT_IN_WARMUP_SECONDS = 60.0
"""The beginning of a built-in workload, which is no steady state; of a backlog all counts."""


@dataclass(frozen=True, slots=True)
class Load:
    """A workload, its policy, and when it is measured."""

    make: Callable[[], Workload]
    """A fresh one, for its clients are used up by a run."""
    policy: Policy
    warmup_seconds: float
    measured_until: float
    duration_seconds: float
    seed: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Timing:
    """What the command line says of time and chance; None: the workload's own."""

    duration_seconds: float | None
    warmup_seconds: float | None
    drain_seconds: float
    seed: int | None

    def spread(self, duration: float, warmup: float) -> tuple[float, float, float]:
        """Warm-up, end of what is measured, end of the run."""
        until = duration if self.duration_seconds is None else self.duration_seconds
        begin = min(warmup, until / 4) if self.warmup_seconds is None else self.warmup_seconds
        if begin >= until:
            raise CommandError(
                f"--warmup: {begin:g} s leave nothing of the {until:g} s of --duration", exit_code=2
            )
        return begin, until, until + self.drain_seconds


def prepare(given: PolicyInput, workload: str, timing: Timing) -> Load:
    """Read the workload (a scenario file or a built-in name) and fit the policy to it."""
    if workload in BUILT_IN:
        return _built_in(given.policy, BuiltInWorkload(workload), timing)
    path = Path(workload)
    if not path.exists() and not path.suffix:
        raise CommandError(
            f"--workload: {workload} is no file, and the built-in ones are {', '.join(BUILT_IN)}",
            exit_code=2,
        )
    return _scenario(given, path, timing)


def _built_in(policy: Policy, name: BuiltInWorkload, timing: Timing) -> Load:
    build = BUILT_IN[name]
    seed = timing.seed or 0
    backlog = name is BuiltInWorkload.TEN_THOUSAND_AGAINST_FIVE
    warmup, until, duration = timing.spread(
        BUILT_IN_SECONDS, 0.0 if backlog else BUILT_IN_WARMUP_SECONDS
    )
    try:
        tenants = build(seed).tenants
    except (OSError, ValueError) as error:
        raise CommandError(f"--workload {name}: {error}", exit_code=2) from None
    tiers = {tier.name for tier in policy.tiers}
    missing = sorted(set(tenants.values()) - tiers)
    if missing:
        raise CommandError(
            f"--workload {name}: its tenants are of the tiers "
            f"{', '.join(sorted(set(tenants.values())))}; the policy has "
            f"{', '.join(tier.name for tier in policy.tiers)}",
            exit_code=2,
        )
    rows = [TenantPolicy(tenant, tier) for tenant, tier in tenants.items()]
    note = f"{len(rows)} tenants of the workload's own, each of weight 1 in its tier"
    return Load(
        lambda: _ordered(build(seed), policy), _only(policy, rows), warmup, until, duration, seed,
        (note,),
    )  # fmt: skip


def _scenario(given: PolicyInput, path: Path, timing: Timing) -> Load:
    try:
        read = read_scenario(path)
        scenario = read.scenario
        warmup, until, duration = timing.spread(scenario.duration_seconds, 0.0)
        seed = scenario.seed if timing.seed is None else timing.seed
        # The load goes on while the last measured requests end, or they would end too easily.
        source = scenarios.Workload(
            replace(scenario, duration_seconds=duration, seed=seed), path.resolve().parent
        )
        source.check_sources()
    except (ScenarioError, TraceError) as error:
        raise CommandError(str(error), exit_code=2) from None
    rows, notes = _rows(given, scenario.tenants)
    tier_of = {row.name: row.tier for row in rows}
    tiers = _tiers(given.policy, tier_of.values())
    try:
        from_scenario(source, tier_of, tiers)
    except ValueError as error:
        raise CommandError(f"--workload {path}: {error}", exit_code=2) from None
    return Load(
        lambda: from_scenario(source, tier_of, tiers), _only(given.policy, rows), warmup, until,
        duration, seed, tuple(notes),
    )  # fmt: skip


def _rows(
    given: PolicyInput, tenants: Iterable[TenantLoad]
) -> tuple[list[TenantPolicy], list[str]]:
    rows: list[TenantPolicy] = []
    taken: dict[str, str] = {}
    added: list[str] = []
    ignored = False
    for load in tenants:
        if load.endpoint is Endpoint.EMBEDDINGS:
            raise CommandError(
                f"tenant {load.name!r} of the workload embeds, which is not simulated", exit_code=2
            )
        ignored = ignored or load.priority is not None or load.deadline_ms is not None
        row = _row_of(given, load)
        if row is None:
            row = TenantPolicy(load.name, _tier_of(given.policy, load))
            added.append(load.name)
        elif row.name in taken:
            raise CommandError(
                f"tenants {taken[row.name]!r} and {load.name!r} of the workload are both Tenant "
                f"{row.name}",
                exit_code=2,
            )
        else:
            taken[row.name] = load.name
        rows.append(replace(row, name=load.name))
    notes = []
    if added:
        names = ", ".join(added[:5]) + (f" and {len(added) - 5} more" if len(added) > 5 else "")
        notes.append(f"Not among the Tenants, so of weight 1 in their tiers: {names}")
    if ignored:
        notes.append("priority and deadline_ms of the workload are not simulated")
    return rows, notes


def _row_of(given: PolicyInput, load: TenantLoad) -> TenantPolicy | None:
    """The Tenant that sends it: by key, else by name."""
    by_name = {row.name: row for row in given.policy.tenants}
    key = load.key or (os.environ.get(load.key_env) if load.key_env else None)
    if key:
        owner = given.digests.get(hashlib.sha256(key.encode()).hexdigest())
        if owner in by_name:
            return by_name[owner]
    if load.name in by_name:
        return by_name[load.name]
    same = [row for name, row in by_name.items() if name.rpartition("/")[2] == load.name]
    return same[0] if len(same) == 1 else None


def _tier_of(policy: Policy, load: TenantLoad) -> str:
    for tier in policy.tiers:
        if tier.name.lower() == load.tier.lower():
            return tier.name
    raise CommandError(
        f"tenant {load.name!r} of the workload is no Tenant of the policy, nor is its tier "
        f"{load.tier!r} one of {', '.join(tier.name for tier in policy.tiers)}",
        exit_code=2,
    )


def _tiers(policy: Policy, used: Iterable[str]) -> tuple[str, ...]:
    """Those that somebody sends in, highest first."""
    wanted = set(used)
    ordered = sorted(policy.tiers, key=lambda tier: (-tier.priority, tier.name))
    return tuple(tier.name for tier in ordered if tier.name in wanted)


def _ordered(workload: Workload, policy: Policy) -> Workload:
    return replace(workload, tiers=_tiers(policy, workload.tenants.values()))


def _only(policy: Policy, rows: Iterable[TenantPolicy]) -> Policy:
    return replace(policy, tenants=tuple(rows))


def pools_of(policy: Policy) -> Mapping[str, str]:
    """KV pool by tier."""
    return {tier: pool.name for pool in policy.kv_pools for tier in pool.tiers}
