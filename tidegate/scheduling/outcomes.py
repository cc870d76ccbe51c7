"""Every way a request can end, and what the client is told: the one place for both.

Each request that reached us ends with exactly one :class:`Outcome`. The table below maps it to the
HTTP answer (OpenAI's error shape: ``type``, ``code``) and to the ``x-tidegate-dropped-reason``
header, whose prefix says whether the engine did work for it: ``rejected-`` none (cheap to retry),
``evicted-`` some. 429 is contention or a limit, 503 nothing that could serve, 504 too late, 499
(never sent, a metric only) a client that went away.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How a request ended; the value is the ``outcome`` label of the metrics."""

    COMPLETED = "completed"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    MODEL_NOT_FOUND = "model_not_found"
    MALFORMED = "malformed"
    BODY_TOO_LARGE = "body_too_large"
    PROMPT_TOO_LONG = "prompt_too_long"
    REQUEST_EXCEEDS_LIMIT = "request_exceeds_limit"
    RATE_LIMITED = "rate_limited"
    THROTTLED = "throttled"
    QUEUE_FULL = "queue_full"
    ENGINE_REFUSED = "engine_refused"
    HELD = "held"
    DRAINING = "draining"
    HANDED_BACK = "handed_back"
    NO_ENGINE = "no_engine"
    QUEUE_WAIT_EXCEEDED = "queue_wait_exceeded"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    ENGINE_FAILED = "engine_failed"
    CLIENT_CLOSED = "client_closed"


@dataclass(frozen=True, slots=True)
class HttpError:
    """What a client is told: status, OpenAI's ``type`` and ``code``, and the drop reason."""

    status: int
    type: str
    code: str
    dropped_reason: str | None = None
    retryable: bool = False
    """Whether the answer carries a ``Retry-After``."""


HTTP_ERRORS: dict[Outcome, HttpError] = {
    Outcome.UNAUTHENTICATED: HttpError(401, "authentication_error", "invalid_api_key"),
    Outcome.FORBIDDEN: HttpError(403, "permission_error", "forbidden"),
    Outcome.MODEL_NOT_FOUND: HttpError(404, "invalid_request_error", "model_not_found"),
    Outcome.MALFORMED: HttpError(400, "invalid_request_error", "invalid_request"),
    Outcome.BODY_TOO_LARGE: HttpError(413, "invalid_request_error", "body_too_large"),
    Outcome.PROMPT_TOO_LONG: HttpError(413, "invalid_request_error", "prompt_too_long"),
    Outcome.REQUEST_EXCEEDS_LIMIT: HttpError(413, "invalid_request_error", "request_exceeds_limit"),
    Outcome.RATE_LIMITED: HttpError(
        429, "rate_limit_error", "rate_limit_exceeded", "rejected-rate-limit", retryable=True
    ),
    Outcome.THROTTLED: HttpError(
        429, "rate_limit_error", "throttled", "rejected-throttled", retryable=True
    ),
    Outcome.QUEUE_FULL: HttpError(
        429, "rate_limit_error", "queue_full", "rejected-queue-full", retryable=True
    ),
    Outcome.ENGINE_REFUSED: HttpError(
        429, "rate_limit_error", "engine_overloaded", "rejected-engine-overloaded", retryable=True
    ),
    Outcome.HELD: HttpError(
        503, "server_error", "tenant_held", "rejected-tenant-held", retryable=True
    ),
    Outcome.DRAINING: HttpError(
        503, "server_error", "draining", "rejected-draining", retryable=True
    ),
    Outcome.HANDED_BACK: HttpError(
        503, "server_error", "handed_back", "rejected-handed-back", retryable=True
    ),
    Outcome.NO_ENGINE: HttpError(
        503, "server_error", "no_engine", "rejected-no-engine", retryable=True
    ),
    Outcome.QUEUE_WAIT_EXCEEDED: HttpError(
        504, "timeout_error", "queue_wait_exceeded", "rejected-queue-wait"
    ),
    Outcome.DEADLINE_EXCEEDED: HttpError(
        504, "timeout_error", "deadline_exceeded", "rejected-deadline"
    ),
    Outcome.ENGINE_FAILED: HttpError(502, "server_error", "engine_failed", "evicted-engine-failed"),
    Outcome.CLIENT_CLOSED: HttpError(499, "server_error", "client_closed"),
}
"""Of every outcome but COMPLETED."""
