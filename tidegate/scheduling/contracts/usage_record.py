"""One line of JSON for each request that has ended: what it was billed, and how it went.

For charge-back, and as a trace: ``tidegate load`` and ``tidegate simulate`` replay a file of them
(trace format UsageJSONL). Exactly one record per request of the tenants' port, whatever its end:
served, refused, abandoned by its client, or cut off by a drain. Lines come in the order of the
ends. Times are durations in seconds but for those named ``_at``, on the wall clock. No content.

Invariant: over all records of a sidecar, a tenant's prompt and output tokens sum to its
``service_tokens_total`` (or less: that never falls, where what was seen of a request turns out to
be more than what it is billed).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tidegate.scheduling.contracts.codec import Report, described

USAGE_RECORD_VERSION = 1


class RecordKind(StrEnum):
    """Tells these lines from others of the same stream."""

    USAGE = "usage"


@dataclass(slots=True)
class UsageRecord(Report):
    """One request that has ended.

    Not frozen as other contracts are: each request makes one, and that would cost it five times as
    much. Nobody changes one.
    """

    version: int = described(
        "Version of this contract.", low=USAGE_RECORD_VERSION, high=USAGE_RECORD_VERSION
    )
    kind: RecordKind = described("What the line is.")
    id: str = described("The request's, as its client got it in x-request-id.", low=1, high=253)
    outcome: str = described("How it ended, as in the metric tidegate_requests_total.")
    arrived_at: float = described("Seconds since the epoch.", low=0)
    duration_seconds: float = described("From its arrival to its end.", low=0)
    pool: str = described("namespace/name of the ServingPool; empty: no policy yet.", default="")
    tenant: str = described("namespace/name; empty: its key was not known.", default="")
    tier: str = described("The tenant's tier then.", default="")
    endpoint: str = described("Name of the endpoint; empty: none that schedules.", default="")
    model: str = described("Name that the client sent, where it is served here.", default="")
    stream: bool = described("Whether the client asked for a stream.", default=False)
    sequences: int = described("Prompts times choices.", default=1, low=1)
    prompt_tokens: int = described("Billed, cached ones too.", default=0, low=0)
    cached_tokens: int | None = described(
        "Of them, those that the prefix cache had; null: not known.", default=None, low=0
    )
    output_tokens: int = described("Billed, over all sequences.", default=0, low=0)
    tokens_reported: bool = described(
        "Whether the engine counted the tokens; false: what was seen of them.", default=False
    )
    engine_ms: float | None = described(
        "Its cost: its share of the engine's busy milliseconds; null: not measured.",
        default=None,
        low=0,
    )
    estimated_prompt_tokens: int = described("Before it was served.", default=0, low=0)
    max_output_tokens: int = described("Most that it might have produced.", default=0, low=0)
    queued_seconds: float | None = described(
        "From its arrival to its dispatch; null: it was not dispatched.", default=None, low=0
    )
    ttft_seconds: float | None = described(
        "From its arrival to its first token; null: none was seen by itself.", default=None, low=0
    )
    limit: str | None = described("Name of the rate limit that refused it.", default=None)
    retry_after_seconds: int | None = described(
        "What a refused client was told.", default=None, low=0
    )
    est_finish_at: float | None = described(
        "When it was expected to end, as of its dispatch.", default=None
    )
    vft_skew: float | None = described(
        "How late that was, as a part of the expected duration; above 0 late.", default=None
    )
    vft_skew_cause: str | None = described("Set where the skew is flagged.", default=None)
    engine_group: str = described(
        "Engine group of the sidecar that wrote it; empty: a router did, or not known.", default=""
    )
