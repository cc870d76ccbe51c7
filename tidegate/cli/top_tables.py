"""The objects' own status as three tables: pools, their tiers, and tenants. Pure.

What is shown is what the operator wrote, so a person sees what ``kubectl describe`` has, only side
by side, and what needs a look first: the pool that is not well, the tier that waits longest, the
tenant with most in its queue. ``-`` is not known; 0 is zero.

Of a tier: *share* of the service, *busy* the part of the engines' time that went to it, *kept* how
many of its requests got what they were promised, the worst promise's, all in the last minute;
what was refused is counted since the sidecars started.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.markup import escape
from rich.table import Table

Json = dict[str, Any]

UNKNOWN = "-"


def pool_table(pools: Sequence[Json]) -> Table:
    """One row for each pool, those that are not well first."""
    table = _table("pool", "ready", "pods", "queued", "running", "what is to be said of it")
    for pool in sorted(pools, key=lambda pool: (_is_well(pool), _name(pool))):
        status = pool.get("status") or {}
        ready = _condition(pool, "Ready")
        count = f"{_shown(status.get('readyReplicas'))}/{_shown(status.get('replicas'))}"
        well = ready.get("status", "Unknown")
        table.add_row(
            escape(_name(pool)),
            well if well == "True" else f"[red]{well}[/red]",
            count,
            _shown(status.get("queued")),
            _shown(status.get("running")),
            escape("; ".join(_remarks(pool)) or "nothing"),
        )
    return table


def tier_table(pools: Sequence[Json], tier: str | None = None) -> Table:
    """One row for each tier of each pool, the longest wait first."""
    table = _table(
        "pool", "tier", "queued", "running", "share", "busy", "kept", "first token p50", "p99",
        "in queue p99", "1,000 calls", "refused so far",
    )  # fmt: skip
    rows = [
        (_name(pool), entry)
        for pool in pools
        for entry in (pool.get("status") or {}).get("tiers") or ()
        if tier in (None, entry["name"])
    ]
    rows.sort(key=lambda row: (-(_p99(row[1], "queueWait") or 0), row[0], row[1]["name"]))
    busy = [row for row in rows if _does_something(row[1])]
    if len(busy) < len(rows):
        table.caption = f"{len(rows) - len(busy)} more had nothing to do"
    for name, entry in busy:
        first = entry.get("ttft") or {}
        table.add_row(
            escape(name),
            escape(entry["name"]),
            _shown(entry.get("queued")),
            _shown(entry.get("running")),
            _percent(entry.get("sharePercent")),
            _percent(entry.get("busyPercent")),
            _percent(_kept(entry)),
            _time(first.get("p50Ms")),
            _time(first.get("p99Ms")),
            _time(_p99(entry, "queueWait")),
            entry.get("pricePer1000Calls", UNKNOWN),
            escape(_refused(entry.get("refused"))),
        )
    return table


def tenant_table(
    tenants: Sequence[Json], pools: Sequence[Json], now: datetime, tier: str | None = None
) -> Table:
    """One row for each tenant, the most in its queues first, then the most refused; what pools say
    of a tenant is newer than what it says of itself."""
    table = _table(
        "tenant", "tier", "queued", "running", "share", "first token p99", "refused in 1 min",
        "last refusal", "ready",
    )  # fmt: skip
    newer, refused = _newest_load(pools), _newest_refusals(pools)
    rows = []
    for tenant in tenants:
        status = tenant.get("status") or {}
        claimed = tenant["spec"]["tierRef"]["name"]
        if tier in (None, claimed):
            rows.append((claimed, tenant, status | newer.get(_name(tenant), {})))
    rows.sort(
        key=lambda row: (
            -(row[2].get("queued") or 0),
            -refused.get(_name(row[1]), (0, ""))[0],
            _name(row[1]),
        )
    )
    for claimed, tenant, status in rows:
        ready, known = _condition(tenant, "Ready"), "queued" in status
        # Its own status is older than the pools': it may not know yet that it was refused.
        told = known and ("lastRefusal" in status or _name(tenant) not in refused)
        last = _refusal(status.get("lastRefusal"), now) if told else UNKNOWN
        table.add_row(
            escape(_name(tenant)),
            escape(claimed),
            _shown(status.get("queued")),
            _shown(status.get("running")),
            _percent(status.get("sharePercent")),
            _time(_p99(status, "ttft")),
            escape(refused.get(_name(tenant), (0, "none" if known else UNKNOWN))[1]),
            escape(last),
            "yes" if ready.get("status") == "True" else escape(ready.get("reason", UNKNOWN)),
        )
    return table


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        words = heading in ("pool", "tier", "tenant", "last refusal", "ready")
        words = words or heading.startswith("refused")
        last = heading.startswith("what ")
        table.add_column(heading, justify="left" if words or last else "right", no_wrap=not last)
    return table


def _does_something(entry: Json) -> bool:
    """Served, waited or was refused: a pool that names no tiers serves all, most of them idle."""
    told = ("queued", "running", "busyPercent", "sharePercent", "ttft", "refused")
    return any(entry.get(what) for what in told)


def _newest_load(pools: Iterable[Json]) -> dict[str, Json]:
    """What pools say of tenants, summed over the pools; their shares are of one pool each."""
    found: dict[str, Json] = {}
    for pool in pools:
        for entry in (pool.get("status") or {}).get("tenants") or ():
            known = found.setdefault(entry["name"], {"queued": 0, "running": 0})
            known["queued"] += entry.get("queued") or 0
            known["running"] += entry.get("running") or 0
            if "sharePercent" in entry and "sharePercent" not in known:
                known["sharePercent"] = entry["sharePercent"]
    return found


def _newest_refusals(pools: Iterable[Json]) -> dict[str, tuple[int, str]]:
    """Of the tenants of whom pools refused most: how many, and why in words."""
    found: dict[str, tuple[int, str]] = {}
    for pool in pools:
        for entry in (pool.get("status") or {}).get("refusedTenants") or ():
            count, said = found.get(entry["name"], (0, ""))
            why = entry["why"]
            if limit := entry.get("limit"):
                why += f" (limit {limit})"
            text = f"{said}; {why}" if said else why
            found[entry["name"]] = (count + entry["refused"], text)
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


def _kept(entry: Mapping[str, Any]) -> int | None:
    """Of the promise that was kept least."""
    known = [o["keptPercent"] for o in entry.get("objectives") or () if "keptPercent" in o]
    return min(known, default=None)


def _refused(counts: Mapping[str, int] | None) -> str:
    ranked = sorted((counts or {}).items(), key=lambda item: (-item[1], item[0]))
    return " ".join(f"{count} {reason}" for reason, count in ranked) or "none"


def _refusal(refusal: Json | None, now: datetime) -> str:
    if not refusal:
        return "none"
    age = int((now - datetime.fromisoformat(refusal["time"]).astimezone(UTC)).total_seconds())
    return f"{refusal['reason']} {_age(max(0, age))} ago"


def _age(seconds: int) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def _shown(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def _percent(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value}%"


def _time(milliseconds: int | None) -> str:
    if milliseconds is None:
        return UNKNOWN
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"
