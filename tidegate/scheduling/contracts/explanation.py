"""Why a request or a tenant waits, waited or was refused: the answer of ``GET /explain/...``.

``/explain/requests/ID`` for a request that waits, runs or ended lately; ``/explain/tenants/NAME``
(namespace/name) for a tenant: where its next request stands, and how its last ones ended. One
sidecar's view of its own engine. No content.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tidegate.scheduling.contracts.codec import Report, described
from tidegate.scheduling.contracts.limits import FairnessUnit, LimitWindow
from tidegate.scheduling.contracts.policy import SchedulingMode
from tidegate.scheduling.contracts.usage_record import UsageRecord

EXPLANATION_VERSION = 1


class TierBefore(StrEnum):
    """Why another tier goes first.

    Reservation: it is behind what it has reserved. Priority: its own is higher. Turn: it has the
    same priority, or a weight, and it is its turn. Limit: the request's tier is above its limit.
    """

    RESERVATION = "Reservation"
    PRIORITY = "Priority"
    TURN = "Turn"
    LIMIT = "Limit"


class Hold(StrEnum):
    """What keeps a request from being the next, where it is not only the others before it.

    InFlightLimit: its tenant has as many in the engine as its tier allows. Engine: nothing goes
    before it now; it waits for the engine to take one more.
    """

    IN_FLIGHT_LIMIT = "InFlightLimit"
    ENGINE = "Engine"


class NoForecast(StrEnum):
    """Why nobody can tell when a request starts.

    NotMeasured: no request has left a queue that was full yet. Starved: tiers that go first are
    sent all that the engine can take. Engine: what goes before it takes no time that counts; it
    starts as soon as the engine takes one more.
    """

    NOT_MEASURED = "NotMeasured"
    STARVED = "Starved"
    ENGINE = "Engine"


class RequestState(StrEnum):
    """Where a request is."""

    WAITING = "Waiting"
    RUNNING = "Running"
    ENDED = "Ended"


@dataclass(frozen=True, slots=True)
class TierAhead:
    """A tier that goes before the request's."""

    name: str = described("The tier.")
    why: TierBefore = described("Why.")
    queued: int = described("Requests of it that wait.", low=0)


@dataclass(frozen=True, slots=True)
class TenantAhead:
    """A tenant of the same tier that is served before the request's."""

    name: str = described("namespace/name.")
    queued: int = described("Requests of it that wait.", low=0)
    running: int = described("Requests of it in the engine.", default=0, low=0)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a request that waits stands."""

    position: int = described("In its tenant's own queue, from 1.", low=1)
    tenant_queued: int = described("Requests of its tenant that wait.", low=1)
    tenant_running: int = described("Requests of its tenant in the engine.", low=0)
    tenant_share_percent: float = described(
        "What its tenant is due of what its tier gets, by its weight among the tenants that send "
        "now.",
        low=0,
        high=100,
    )
    tenant_debt: float = described(
        "What its tenant was served beyond its due, in `unit`; below 0: less than its due."
    )
    unit: FairnessUnit = described("In what the tenants of its tier are compared.")
    mode: SchedulingMode = described("How requests are ordered now.")
    tenant_max_in_flight: int | None = described(
        "Most requests of its tenant in the engine; null: no limit.", default=None
    )
    ahead_in_arrival_order: int | None = described(
        "Requests before it where arrival alone counts; null: it does not.", default=None, low=0
    )
    tenants_ahead: int = described("Tenants of its tier whose turn is before.", default=0, low=0)
    next_tenants: tuple[TenantAhead, ...] = described("The first of them.", default=(), high=5)
    tiers_ahead: tuple[TierAhead, ...] = described("Tiers that go first.", default=())
    hold: Hold | None = described("What else keeps it.", default=None)
    starts_in_seconds: float | None = described(
        "When it is predicted to go to the engine, from now, if tiers that go first are sent no "
        "more than lately; null: see `no_forecast`.",
        default=None,
        low=0,
    )
    no_forecast: NoForecast | None = described("Why not.", default=None)
    finishes_in_seconds: float | None = described(
        "When it is predicted to have ended, likewise; null also where no step of the engine was "
        "measured.",
        default=None,
        low=0,
    )


@dataclass(frozen=True, slots=True)
class LimitUse:
    """What a tenant has used of one of its rate limits."""

    name: str = described("The limit.")
    per: LimitWindow = described("Its window.")
    requests: int | None = described("Requests allowed; null: not limited.", default=None)
    requests_used: int = described("Of them.", default=0, low=0)
    tokens: int | None = described("Tokens allowed; null: not limited.", default=None)
    tokens_used: int = described("Of them.", default=0, low=0)


@dataclass(frozen=True, slots=True)
class TenantRequests:
    """Requests of one tenant."""

    tenant: str = described("namespace/name.")
    tier: str = described("Its tier.")
    requests: int = described("How many.", low=1)


@dataclass(frozen=True, slots=True)
class Lateness:
    """Why a request was throttled: what was expected of it when it came, in seconds."""

    wait_seconds: float | None = described(
        "In the queue; null: without end, as tiers that go first were sent all that the engine "
        "could take.",
        low=0,
    )
    first_token_seconds: float = described("From its dispatch to its first token.", low=0)
    target_seconds: float = described(
        "Promised from its arrival to its first token, or left until its own deadline."
    )


@dataclass(frozen=True, slots=True)
class RequestExplanation(Report):
    """One request."""

    version: int = described(
        "Version of this contract.", low=EXPLANATION_VERSION, high=EXPLANATION_VERSION
    )
    id: str = described("The request's.")
    state: RequestState = described("Where it is.")
    tenant: str = described("namespace/name; empty: its key was not known.", default="")
    tier: str = described("The tenant's tier.", default="")
    waited_seconds: float = described("In the queue, so far or in all.", default=0.0, low=0)
    in_engine: tuple[TenantRequests, ...] = described(
        "Whose requests the engine had when it came, most first; as far as it is remembered.",
        default=(),
    )
    waiting_then: tuple[TenantRequests, ...] = described(
        "Whose requests waited when it came, likewise.", default=()
    )
    arrival_complete: bool = described(
        "Whether all that was there when it came is remembered.", default=True
    )
    engine_seats: int | None = described(
        "Sequences that the engine runs at most; null: not known.", default=None, low=1
    )
    lateness: Lateness | None = described("Of one that was throttled.", default=None)
    in_engine_now: tuple[TenantRequests, ...] = described(
        "Of one that waits: whose requests the engine has now, most first.", default=()
    )
    served_instead: tuple[TenantRequests, ...] = described(
        "Whose requests went to the engine while it waited, most first; as far back as it is "
        "remembered.",
        default=(),
    )
    served_instead_complete: bool = described(
        "Whether all of its wait is remembered.", default=True
    )
    standing: Standing | None = described("Of one that waits.", default=None)
    running_seconds: float | None = described("Since its dispatch.", default=None, low=0)
    output_tokens: int = described("Seen so far of one that runs.", default=0, low=0)
    record: UsageRecord | None = described("Of one that has ended.", default=None)
    limit: LimitUse | None = described(
        "The rate limit that refused it, and what its tenant has used of it now.", default=None
    )


@dataclass(frozen=True, slots=True)
class PromiseKept:
    """What a tenant is promised of its first tokens, and how its last requests fared."""

    target_seconds: float = described("Promised from the arrival to the first token.", low=0)
    requests: int = described("Of the time of `lately`, those that count for it.", default=0, low=0)
    late: int = described("Of them, those whose first token came late.", default=0, low=0)
    refused: int = described(
        "Of them, those that the pool ended before that (throttled, waited too long, engine "
        "failed).",
        default=0,
        low=0,
    )


@dataclass(frozen=True, slots=True)
class TenantExplanation(Report):
    """One tenant on one sidecar."""

    version: int = described(
        "Version of this contract.", low=EXPLANATION_VERSION, high=EXPLANATION_VERSION
    )
    name: str = described("namespace/name.")
    tier: str = described("Its tier.")
    queued: int = described("Requests that wait.", default=0, low=0)
    running: int = described("Requests in the engine.", default=0, low=0)
    oldest_wait_seconds: float = described(
        "How long that has waited which waits longest; 0: none waits.", default=0.0, low=0
    )
    oldest_request: str | None = described("Its id.", default=None)
    closed: str | None = described("Why new ones are refused; null: they are not.", default=None)
    next_request: str | None = described("Id of the one that goes next.", default=None)
    standing: Standing | None = described("Of that one.", default=None)
    in_engine_now: tuple[TenantRequests, ...] = described(
        "While one waits: whose requests the engine has now, most first.", default=()
    )
    engine_seats: int | None = described(
        "Sequences that the engine runs at most; null: not known.", default=None, low=1
    )
    limits: tuple[LimitUse, ...] = described("Its rate limits.", default=())
    told_at: float = described("When this was told, seconds since the epoch.", default=0.0, low=0)
    started_at: float = described(
        "When the sidecar started, seconds since the epoch.", default=0.0, low=0
    )
    requests_total: Mapping[str, int] = described(
        "Ended requests by outcome, since then.", default_factory=dict
    )
    lately_seconds: float = described(
        "How far back `lately` goes: a minute, or what is remembered.", default=0.0, low=0
    )
    lately: Mapping[str, int] = described(
        "Ended requests of that time by outcome.", default_factory=dict
    )
    promise: PromiseKept | None = described(
        "Of its first tokens; null: its tier promises nothing of them.", default=None
    )
    slowest: UsageRecord | None = described(
        "Of those the one that was served and had its first token last after its arrival.",
        default=None,
    )
    last: tuple[UsageRecord, ...] = described(
        "Its last requests that ended, newest first.", default=(), high=20
    )
