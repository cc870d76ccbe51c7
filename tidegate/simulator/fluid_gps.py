"""Generalised processor sharing as a fluid: the ideal that no real scheduler reaches.

Theory of operation (Parekh and Gallager, IEEE/ACM Transactions on Networking 1993): a server of a
constant capacity works on all tenants that have anything to do at once, in proportion to their
weights. It serves in infinitely small pieces, so it is no schedule but a yardstick: packet-wise
fair queueing ends each request at most one greatest cost after it.

An engine cannot put all of its capacity into one request, as decoding is sequential: ``job_rate``
bounds the rate of one. A tenant's share then goes to its requests in order of arrival, each up to
the bound, and what it cannot use goes to the others (water filling).

Between two events (an arrival or an end) all rates are constant, so the result is exact.
Cost: O(events x requests in service).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class FluidJob:
    """One request; ``cost`` in the unit of the capacity."""

    tenant: str
    arrival: float
    cost: float


def finish_times(
    jobs: Sequence[FluidJob],
    capacity: float,
    weights: Mapping[str, float] | None = None,
    job_rate: float = inf,
) -> list[float]:
    """When each ends, in seconds, in the order of ``jobs``.

    ``capacity`` and ``job_rate`` are in cost units a second; an unnamed tenant has weight 1.
    ValueError: neither may be 0 or less.
    """
    if capacity <= 0 or job_rate <= 0:
        raise ValueError("capacity and job_rate must be positive")
    order = sorted(range(len(jobs)), key=lambda index: (jobs[index].arrival, index))
    left = [job.cost for job in jobs]
    ends = [0.0] * len(jobs)
    queues: dict[str, list[int]] = {}
    now, position = 0.0, 0
    while position < len(order) or queues:
        if not queues:
            now = max(now, jobs[order[position]].arrival)
        while position < len(order) and jobs[order[position]].arrival <= now:
            queues.setdefault(jobs[order[position]].tenant, []).append(order[position])
            position += 1
        rates = _job_rates(queues, capacity, weights or {}, job_rate)
        until = jobs[order[position]].arrival if position < len(order) else inf
        until = min(until, *(now + left[index] / rate for index, rate in rates.items()))
        for index, rate in rates.items():
            due = now + left[index] / rate
            left[index] -= rate * (until - now)
            if due <= until:
                ends[index] = until
                queues[jobs[index].tenant].remove(index)
        queues = {tenant: queue for tenant, queue in queues.items() if queue}
        now = until
    return ends


def _job_rates(
    queues: Mapping[str, Sequence[int]],
    capacity: float,
    weights: Mapping[str, float],
    job_rate: float,
) -> dict[int, float]:
    """The rates of all requests in service, all above 0."""
    rates: dict[int, float] = {}
    for tenant, share in _shares(queues, capacity, weights, job_rate).items():
        for index in queues[tenant]:
            rate = min(share, job_rate)
            if rate <= 0:
                break
            rates[index] = rate
            share -= rate
    return rates


def _shares(
    queues: Mapping[str, Sequence[int]],
    capacity: float,
    weights: Mapping[str, float],
    job_rate: float,
) -> dict[str, float]:
    """Water filling: in proportion to the weights, none above what its requests can take."""
    shares: dict[str, float] = {}
    open_tenants = set(queues)
    while open_tenants:
        level = capacity / sum(weights.get(tenant, 1.0) for tenant in open_tenants)
        full = {
            tenant
            for tenant in open_tenants
            if job_rate * len(queues[tenant]) <= level * weights.get(tenant, 1.0)
        }
        if not full:
            for tenant in open_tenants:
                shares[tenant] = level * weights.get(tenant, 1.0)
            break
        for tenant in full:
            shares[tenant] = job_rate * len(queues[tenant])
            capacity -= shares[tenant]
        open_tenants -= full
    return shares
