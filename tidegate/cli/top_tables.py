"""The objects' own status as three tables: pools, their tiers, and tenants. Pure.

What is shown is what the operator wrote, so a person sees what ``kubectl describe`` has, only side
by side, and what needs a look first: the pool that is not well, the tier whose oldest request waits
longest, the tenant with most in its queue. ``-`` is not known; 0 is zero.

Of a tier: *oldest wait* of what waits now, which says of one that is starved what the times of
those that were served cannot; *share* of the service, *busy* the part of the engines' time that
went to it, *kept* how many of its requests got what they were promised, the worst promise's, all in
the last minute; what was refused is counted since the sidecars started.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from tidegate.cli.ages import age
from tidegate.cli.top_fit import UNKNOWN, Column, fitted, names, words

Json = dict[str, Any]

_OF_THE_LAST_MINUTE = ("sharePercent", "ttft")
"""What a tenant's own status, of another minute than its pools', would say beside them."""
_TIERS_YIELD = (
    "refused so far", "1,000 calls", "refused so far", "TTFT p50", "busy", "share", "queue p99",
    "oldest wait", "refused so far",
)  # fmt: skip
_TENANTS_YIELD = (
    "refused in 1 min", "refused in 1 min", "ready", "share", "last refusal", "oldest wait",
    "refused in 1 min",
)  # fmt: skip


def pool_table(pools: Sequence[Json], width: int) -> Table:
    """One row for each pool, those that are not well first."""
    rows = _unwell_first(pools)
    statuses = [pool.get("status") or {} for pool in rows]
    ready = [_condition(pool, "Ready").get("status", "Unknown") for pool in rows]
    pods = [f"{_shown(s.get('readyReplicas'))}/{_shown(s.get('replicas'))}" for s in statuses]
    columns = [
        names("pool", [_name(pool) for pool in rows]),
        Column("ready", [w if w == "True" else f"[red]{w}[/red]" for w in ready], words=True),
        Column("pods", pods),
        Column("queued", [_shown(status.get("queued")) for status in statuses]),
        Column("running", [_shown(status.get("running")) for status in statuses]),
    ]
    return fitted(columns, (), width)


def pool_remarks(pools: Sequence[Json]) -> list[str]:
    """What is to be said of pools, a line for each of which there is anything, in their order."""
    said = [(_name(pool), _remarks(pool)) for pool in _unwell_first(pools)]
    return [f"{name}: {'; '.join(remarks)}" for name, remarks in said if remarks]


def tier_table(pools: Sequence[Json], width: int, tier: str | None = None) -> Table:
    """One row for each tier of each pool, the longest wait first."""
    rows = [
        (_name(pool), entry)
        for pool in pools
        for entry in (pool.get("status") or {}).get("tiers") or ()
        if tier in (None, entry["name"])
    ]
    rows.sort(
        key=lambda row: (
            -(row[1].get("oldestWaitMs") or 0),
            -(_p99(row[1], "queueWait") or 0),
            row[0],
            row[1]["name"],
        )
    )
    busy = [row for row in rows if _does_something(row[1])]
    entries = [entry for _, entry in busy]
    refused = [Counter(entry.get("refused") or {}) for entry in entries]
    columns = [
        names("tier", [entry["name"] for entry in entries]),
        Column("queued", [_shown(entry.get("queued")) for entry in entries]),
        Column("running", [_shown(entry.get("running")) for entry in entries]),
        Column("oldest\nwait", [_oldest_wait(entry) for entry in entries]),
        Column("share", [_percent(entry.get("sharePercent")) for entry in entries]),
        Column("busy", [_percent(entry.get("busyPercent")) for entry in entries]),
        Column("kept", [_percent(_kept(entry)) for entry in entries]),
        Column("TTFT\np50", [_time((entry.get("ttft") or {}).get("p50Ms")) for entry in entries]),
        Column("TTFT\np99", [_time(_p99(entry, "ttft")) for entry in entries]),
        Column("queue\np99", [_time(_p99(entry, "queueWait")) for entry in entries]),
        Column("1,000\ncalls", [entry.get("pricePer1000Calls", UNKNOWN) for entry in entries]),
        words(
            "refused\nso far",
            [_refused(counts) for counts in refused],
            [_refused_most(counts) for counts in refused],
            [str(counts.total()) for counts in refused],
        ),
    ]
    if len(pools) > 1:
        columns.insert(0, names("pool", [name for name, _ in busy]))
    table = fitted(columns, _TIERS_YIELD, width)
    if len(busy) < len(rows):
        table.caption = f"{len(rows) - len(busy)} {'more ' if busy else ''}had nothing to do"
    return table


def tenant_table(
    tenants: Sequence[Json],
    pools: Sequence[Json],
    now: datetime,
    width: int,
    tier: str | None = None,
) -> Table:
    """One row for each tenant, the most in its queues first, then the most refused; what pools say
    of a tenant is newer than what it says of itself, and alone tells of the last minute."""
    newer, refused = _newest_load(pools), _newest_refusals(pools)
    rows = []
    for tenant in tenants:
        name, status = _name(tenant), tenant.get("status") or {}
        if tier in (None, tenant["spec"]["tierRef"]["name"]):
            own = {what: said for what, said in status.items() if what not in _OF_THE_LAST_MINUTE}
            told = own | newer.get(name, {})
            rows.append(_TenantRow(name, tenant, told, refused.get(name)))
    rows.sort(
        key=lambda row: (
            -(row.status.get("queued") or 0),
            -(row.refused.count if row.refused else 0),
            row.name,
        )
    )
    columns = [
        names("tenant", [row.name for row in rows]),
        names("tier", [row.tenant["spec"]["tierRef"]["name"] for row in rows]),
        Column("queued", [_shown(row.status.get("queued")) for row in rows]),
        Column("running", [_shown(row.status.get("running")) for row in rows]),
        Column("oldest\nwait", [_oldest_wait(row.status) for row in rows]),
        Column("share", [_percent(row.status.get("sharePercent")) for row in rows]),
        Column("TTFT\np99", [_time(_p99(row.status, "ttft")) for row in rows]),
        words(
            "refused\nin 1 min",
            [row.refused_text(0) for row in rows],
            [row.refused_text(1) for row in rows],
            [row.refused_text(2) for row in rows],
        ),
        words("last\nrefusal", [row.last_refusal(now) for row in rows]),
        words("ready", [row.ready for row in rows]),
    ]
    return fitted(columns, _TENANTS_YIELD, width)


@dataclass(slots=True)
class _Refusals:
    """Of a tenant, in the last minute, over the pools that name it."""

    count: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    limits: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _TenantRow:
    name: str
    tenant: Json
    status: Json
    """Its own and what pools say of it."""
    refused: _Refusals | None
    """Of the last minute; None: no pool names it among those most refused."""

    def refused_text(self, shorter: int) -> str:
        """All reasons with the limits, the first one, or the number alone."""
        if self.refused is None:
            return "none" if "queued" in self.status else UNKNOWN
        if shorter == 2:
            return str(self.refused.count)
        if shorter:
            return _refused_most(self.refused.reasons)
        limits = "".join(f" (limit {limit})" for limit in self.refused.limits)
        return _refused(self.refused.reasons) + limits

    def last_refusal(self, now: datetime) -> str:
        """Its own status may be older than the pools', and not know yet that it was refused."""
        if self.refused is not None:
            return "now"
        if last := self.status.get("lastRefusal"):
            then = datetime.fromisoformat(last["time"]).astimezone(UTC)
            return f"{last['reason']} {age(max(0, int((now - then).total_seconds())))} ago"
        return "none" if "queued" in self.status else UNKNOWN

    @property
    def ready(self) -> str:
        condition = _condition(self.tenant, "Ready")
        if condition.get("status") == "True":
            return "yes"
        return str(condition.get("reason", UNKNOWN))


def _does_something(entry: Json) -> bool:
    """Served, waited or was refused: a pool that names no tiers serves all, most of them idle."""
    told = ("queued", "running", "busyPercent", "sharePercent", "ttft", "refused")
    return any(entry.get(what) for what in told)


def _newest_load(pools: Iterable[Json]) -> dict[str, Json]:
    """What pools say of tenants: summed, and of times the longest; shares are of one pool each."""
    found: dict[str, Json] = {}
    for pool in pools:
        for entry in (pool.get("status") or {}).get("tenants") or ():
            known = found.setdefault(entry["name"], {"queued": 0, "running": 0})
            known["queued"] += entry.get("queued") or 0
            known["running"] += entry.get("running") or 0
            if "sharePercent" in entry and "sharePercent" not in known:
                known["sharePercent"] = entry["sharePercent"]
            oldest = max(known.get("oldestWaitMs") or 0, entry.get("oldestWaitMs") or 0)
            known["oldestWaitMs"] = oldest or None
            if (_p99(entry, "ttft") or 0) > (_p99(known, "ttft") or 0):
                known["ttft"] = entry["ttft"]
    return found


def _newest_refusals(pools: Iterable[Json]) -> dict[str, _Refusals]:
    """Of the tenants of whom pools refused most: how many, and why."""
    found: dict[str, _Refusals] = {}
    for pool in pools:
        for entry in (pool.get("status") or {}).get("refusedTenants") or ():
            known = found.setdefault(entry["name"], _Refusals())
            known.count += entry["refused"]
            said = entry["why"].split()
            for count, reason in zip(said[::2], said[1::2], strict=False):
                known.reasons[reason] += int(count)
            if (limit := entry.get("limit")) and limit not in known.limits:
                known.limits.append(limit)
    return found


def _remarks(pool: Json) -> list[str]:
    """The messages of conditions that a person should see: what is not well, and warnings; each
    thing once, for Ready sums up others."""
    said: list[tuple[str, str]] = []
    for condition in (pool.get("status") or {}).get("conditions") or ():
        kind, status, message = condition["type"], condition["status"], condition["message"]
        wanted = {"Progressing": "False"}.get(kind, "True")
        if kind in ("Accepted", "ResolvedRefs", "Available", "Ready", "PolicyApplied", "SLOMet"):
            if status != wanted:
                said.append((f"{kind} {condition['reason']}: ", message))
        elif kind == "Progressing":
            if status != wanted:
                said.append(("", message))
        else:
            said.append((f"{kind}: ", message))
    return [
        prefix + message
        for number, (prefix, message) in enumerate(said)
        if not any(message == before for _, before in said[:number])
        and not any(message in other and message != other for _, other in said)
    ]


def _unwell_first(pools: Iterable[Json]) -> list[Json]:
    return sorted(pools, key=lambda pool: (_is_well(pool), _name(pool)))


def _is_well(obj: Json) -> bool:
    return bool(_condition(obj, "Ready").get("status") == "True")


def _condition(obj: Json, kind: str) -> Json:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == kind), {})


def _name(obj: Json) -> str:
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def _p99(entry: Mapping[str, Any], what: str) -> int | None:
    found: int | None = (entry.get(what) or {}).get("p99Ms")
    return found


def _oldest_wait(entry: Mapping[str, Any]) -> str:
    return "none" if entry.get("queued") == 0 else _time(entry.get("oldestWaitMs"))


def _kept(entry: Mapping[str, Any]) -> int | None:
    """Of the promise that was kept least."""
    known = [o["keptPercent"] for o in entry.get("objectives") or () if "keptPercent" in o]
    return min(known, default=None)


def _refused(counts: Mapping[str, int]) -> str:
    return " ".join(f"{count} {reason}" for reason, count in _ranked(counts)) or "none"


def _refused_most(counts: Mapping[str, int]) -> str:
    """Why most were refused, and how many besides."""
    if not (ranked := _ranked(counts)):
        return "none"
    (reason, count), *others = ranked
    more = sum([count for _, count in others])
    return f"{count} {reason} +{more}" if more else f"{count} {reason}"


def _ranked(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _shown(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def _percent(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value}%"


def _time(milliseconds: int | None) -> str:
    if milliseconds is None:
        return UNKNOWN
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    return f"{milliseconds / 1000:.{1 if milliseconds < 100_000 else 0}f} s"
