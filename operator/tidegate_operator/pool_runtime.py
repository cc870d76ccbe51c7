"""What the controller keeps of a pool for as long as the pool exists."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from tidegate.scheduling.contracts import Policy
from tidegate_operator.admin_port import Delivery
from tidegate_operator.autoscale.pool_scaler import GroupNow
from tidegate_operator.autoscale.runtime import PoolAutoscaler
from tidegate_operator.engine_groups import home_of
from tidegate_operator.figures import PoolFigures, pool_figures
from tidegate_operator.pod_reports import cut_off, unread_engines
from tidegate_operator.pool_state import PodState
from tidegate_operator.prices import pod_hour_price
from tidegate_operator.reconciled import Heard, PoolState
from tidegate_operator.sidecars import SidecarLink
from tidegate_operator.slo.budget_reader import BudgetReader
from tidegate_operator.slo.promises import Promise, promises_of
from tidegate_operator.status import Delivered, address_for, wanted_groups

log = logging.getLogger(__name__)

LINK_RESTART_SECONDS = 5.0


class PoolRuntime:
    """The link to a pool's sidecars, kept running, and what is known of the pool."""

    def __init__(
        self,
        link: SidecarLink,
        routers: SidecarLink,
        autoscaler: PoolAutoscaler,
        budgets: BudgetReader,
    ) -> None:
        self.link = link
        self.routers = routers
        self.autoscaler = autoscaler
        self._budgets = budgets
        self.state: PoolState | None = None
        """Of the last reconcile."""
        self.figures: PoolFigures | None = None
        """Unset: its sidecars were not read yet."""
        self.seen_generation = 0
        """The highest that a sidecar reported and that was not delivered."""
        self.tiers: frozenset[str] = frozenset()
        self.tenants: frozenset[str] = frozenset()
        self._addresses: Mapping[str, str | None] = {}
        """Of each tenant that it serves: what it should call."""
        self._kv_blocks: int | None = None
        """Of an engine, as last heard of."""
        self.tasks = (
            asyncio.create_task(self._run(link)),
            asyncio.create_task(self._run(routers)),
            asyncio.create_task(autoscaler.run(self._groups_now)),
            asyncio.create_task(budgets.run()),
        )

    def stop(self) -> None:
        """End what was kept running."""
        for task in self.tasks:
            task.cancel()

    def heard(
        self,
        pods: Callable[[], Sequence[PodState]],
        routers: Callable[[], Sequence[PodState]],
    ) -> Heard:
        """What reconciling is to know; ``pods`` and ``routers`` are those that there are when it
        delivers."""
        versions = (self.link.reads_policy, self.routers.reads_policy)
        return Heard(
            self.seen_generation,
            min((version for version in versions if version is not None), default=None),
            self.autoscaler.sizes,
            self.link.in_force,
            lambda delivery: self.update(pods(), routers(), delivery),
            identity_keys=self.state.identity_keys if self.state else None,
        )

    def update(
        self,
        pods: Sequence[PodState],
        routers: Sequence[PodState],
        delivery: Delivery | None,
    ) -> None:
        """Who is there, and what they should run."""
        self.link.update(pods, delivery)
        self.routers.update(routers, delivery)

    @property
    def goes_on(self) -> bool:
        """The removal of its router waited for a policy that all sidecars run by now."""
        state = self.state
        if state is None or not state.route.waits_for_sidecars or not state.delivery:
            return False
        return self.link.in_force == state.delivery.generation

    def serve(self, state: PoolState | None) -> tuple[frozenset[str], frozenset[str]]:
        """Take the new state; the tiers and tenants that began or ceased to be served, or are to
        call another address."""
        pool, compiled = (state.pool, state.compiled) if state else (None, None)
        policy = compiled.policy if compiled else None
        tiers = frozenset(compiled.tier_names if compiled else ())
        changed_tiers = tiers ^ self.tiers
        changed_tenants = self._take_addresses(state if pool else None, policy)
        self.state, self.tiers, self.tenants = state, tiers, frozenset(self._addresses)
        self._budgets.serve(pool, policy.tiers if policy else ())
        groups = wanted_groups(state) if state and pool else ()
        self.autoscaler.serve(
            pool,
            policy.tiers if policy else (),
            {group.name: group.replicas for group in groups},
        )
        return changed_tiers, changed_tenants

    def _take_addresses(self, state: PoolState | None, policy: Policy | None) -> frozenset[str]:
        """The tenants for whom something changes; without a state each keeps the address it had."""
        before = self._addresses
        tiers, rows = (policy.tiers, policy.tenants) if policy else ((), ())
        urls = {tier.name: address_for(state, tier.name) for tier in tiers} if state else {}
        self._addresses = {row.name: urls.get(row.tier) or before.get(row.name) for row in rows}
        names = before.keys() | self._addresses.keys()
        moved = {name for name in names if before.get(name) != self._addresses.get(name)}
        return frozenset(moved | (before.keys() ^ self._addresses.keys()))

    @property
    def promises(self) -> Sequence[Promise] | None:
        """How they are kept; None: that has still to be found out."""
        if self.figures is None or self._budgets.waiting:
            return None
        return self.figures.promises

    def _groups_now(self) -> list[GroupNow]:
        """Each engine group with the tiers that are at home there, and its sidecars."""
        state = self.state
        policy = state.compiled.policy if state and state.compiled else None
        if state is None or state.pool is None or policy is None:
            return []
        first = wanted_groups(state)[0].name
        homes = {tier.name: home_of(state.pool, tier.name) or first for tier in policy.tiers}
        ready = [sidecar for sidecar in self.link.sidecars.values() if sidecar.pod.ready]
        return [
            GroupNow(
                group.name,
                [tier for tier in policy.tiers if homes[tier.name] == group.name],
                {s.pod.name: tuple(s.readings) for s in ready if s.pod.group == group.name},
            )
            for group in wanted_groups(state)
        ]

    def measure(self, window_seconds: float, *, partly: bool) -> None:
        """Take new figures, unless a ready sidecar was not read yet and ``partly`` is not set."""
        sidecars = self.link.sidecars.values()
        engines = (s.readings[-1].status.engine for s in sidecars if s.readings)
        known = [engine.kv_blocks for engine in engines if engine and engine.kv_blocks is not None]
        self._kv_blocks = min(known, default=self._kv_blocks)
        if partly or all(s.readings for s in sidecars if s.pod.ready):
            self.figures = self._with_terms(pool_figures(self.link.readings(), window_seconds))

    def _with_terms(self, figures: PoolFigures) -> PoolFigures:
        """The figures with what the pool's spec says of them."""
        state = self.state
        if state is None or state.pool is None or state.compiled is None:
            return figures
        policy, shared = state.compiled.policy, state.pool.spec.shared_state
        tiers = policy.tiers if policy else ()
        figures.pod_hour = pod_hour_price(state.pool)
        figures.shared_state = shared.address if shared else None
        figures.kv_pool_of = {
            tier: pool.name for pool in (policy.kv_pools if policy else ()) for tier in pool.tiers
        }
        figures.promises = promises_of(
            state.name, tiers, figures.kept_since_start, self._budgets.told
        )
        return figures

    def address_of(self, tenant: str) -> str | None:
        """Base URL that a Tenant whom it serves should call."""
        return self._addresses.get(tenant)

    def delivered(self) -> Delivered:
        """How far the newest policy got."""
        behind = [*self.link.behind, *self.routers.behind]
        pending = (self.link.pending_since, self.routers.pending_since)
        told = self.link.told
        since = min((begun for begun in pending if begun is not None), default=None)
        return Delivered(
            ready=sum(s.pod.ready for s in self.link.sidecars.values()),
            behind=tuple(s.pod.name for s in behind),
            refusals=tuple(f"pod {s.pod.name}: {s.refusal}" for s in behind if s.refusal),
            pending_seconds=time.monotonic() - since if since is not None else 0.0,
            kv_blocks=self._kv_blocks,
            cut_off=cut_off(told),
            unread_engines=unread_engines(told),
        )

    async def _run(self, link: SidecarLink) -> None:
        """A link whose loop fails is logged and begun anew: no pool is silently left alone."""
        while True:
            try:
                await link.run()
            except Exception:
                log.exception("a link to the pods of pool %s failed", link.pool)
            await asyncio.sleep(LINK_RESTART_SECONDS)
