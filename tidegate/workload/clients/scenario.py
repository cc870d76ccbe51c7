"""A load scenario as a simulated workload: the same requests that ``tidegate load`` would send."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tidegate import workload as scenarios
from tidegate.scheduling.contracts import ArrivalProcess, TenantLoad
from tidegate.workload.clients.client import RETRY_SECONDS, Client, Workload
from tidegate.workload.requests import PlannedRequest


@dataclass(slots=True)
class ScenarioClient:
    """One tenant of a scenario."""

    source: scenarios.Workload
    load: TenantLoad
    tier: str
    kind: str = "chat"
    _closed: Iterator[PlannedRequest] = field(init=False)

    def __post_init__(self) -> None:
        self._closed = self.source.requests(self.load)

    @property
    def name(self) -> str:
        return self.load.name

    @property
    def tenants(self) -> Sequence[str]:
        return (self.load.name,)

    def arrivals(self) -> Iterator[PlannedRequest]:
        if self.load.arrival.process is not ArrivalProcess.CLOSED:
            yield from self._closed
            return
        for _ in range(self.load.arrival.concurrency or 1):
            request = self._next(self.load.start_seconds)
            if request is None:
                return
            yield request

    def follow_up(
        self, request: PlannedRequest, ended_at: float, completed: bool
    ) -> PlannedRequest | None:
        if self.load.arrival.process is not ArrivalProcess.CLOSED:
            return None
        return self._next(ended_at + (0.0 if completed else RETRY_SECONDS))

    def _next(self, at: float) -> PlannedRequest | None:
        if at >= self.source.scenario.duration_seconds:
            return None
        planned = next(self._closed, None)
        return None if planned is None else replace(planned, at_seconds=at)


def from_scenario(
    source: scenarios.Workload, tier_of: dict[str, str], tiers: Sequence[str]
) -> Workload:
    """A scenario's tenants as clients; ``tier_of`` by tenant, where it is not the scenario's own.

    ValueError: a tenant's tier is none of ``tiers``, tenants of one client of a built-in workload
    are in several, or two clients have one name.
    """
    tier_by_tenant = {
        load.name: tier_of.get(load.name, load.tier) for load in source.scenario.tenants
    }
    for tenant, tier in tier_by_tenant.items():
        if tier not in tiers:
            raise ValueError(f"tenant {tenant!r} is in tier {tier!r}, which is not served here")
    clients: list[Client] = [
        ScenarioClient(source, load, tier_by_tenant[load.name])
        for load in source.scenario.tenants
        if load.arrival.process is not ArrivalProcess.BUILT_IN
    ]
    names = {client.name for client in clients}
    for client in source.clients():
        its_tiers = sorted({tier_by_tenant[tenant] for tenant in client.tenants})
        if len(its_tiers) > 1:
            raise ValueError(
                f"the tenants {', '.join(client.tenants)} send as one and must be in one tier; "
                f"they are in {', '.join(its_tiers)}"
            )
        if client.name in names:
            raise ValueError(
                f"tenant {client.name!r}: a client of the built-in workload has this name"
            )
        clients.append(replace(client, tier=its_tiers[0]))
    return Workload(source.scenario.name, tuple(tiers), tuple(clients))
