"""What a tier, or a tenant for itself, is promised and forbidden: prompts, rates, latencies.

Each value has a twin in ``tidegate/scheduling/contracts/limits.py``; what it does stands in the
module of ``tidegate/scheduling`` that puts it into force. Absence means that nothing is limited or
promised there.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from tidegate.scheduling.contracts import Endpoint, LimitWindow, OnExceed, SloMetric
from tidegate.scheduling.contracts.limits import (
    DEFAULT_BACKOFF_MAX_SECONDS,
    DEFAULT_BACKOFF_PER_QUEUED_REQUEST_SECONDS,
    DEFAULT_PREEMPTIONS_PER_REQUEST,
)
from tidegate_operator.api.fields import ApiModel, ItemName, described, duration, rule, rules
from tidegate_operator.api.model import ModelName

MAX_TOKENS = 10_000_000
MAX_LIMIT = 10**12
"""Of a rate limit: a month of a whole cluster, and exact in a double."""
MAX_RATE_LIMITS = 16
MAX_MODELS = 64
DEFAULT_RATIO = "99.0"
DEFAULT_WINDOW = "720h"

_ONE_OF_PROMPT = "needs maxTokens, maxPrefillTime, or both"
_ONE_OF_RATE = "needs requests, tokens, or both"


class PromptLimit(ApiModel):
    """The largest prompt of a request."""

    model_config = rules(rule("has(self.maxTokens) || has(self.maxPrefillTime)", _ONE_OF_PROMPT))

    max_tokens: int | None = described(
        "Most tokens of a prompt, over all prompts of one request.",
        unset="not limited in tokens",
        ge=1,
        le=MAX_TOKENS,
    )
    max_prefill_time: str | None = duration(
        "Longest time that the engine, at its measured rate, would take for the prompt alone. "
        "Until a rate is measured nothing is refused by it.",
        low="1ms",
        high="24h",
        unset="not limited in time",
    )
    on_exceed: OnExceed | None = described(
        "What becomes of a larger one. Reject: 413. Truncate: the beginning of the prompt is cut "
        "off. BestEffort: it is served behind all other requests of its tenant.",
        unset="Reject",
    )

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if self.max_tokens is None and self.max_prefill_time is None:
            raise ValueError(_ONE_OF_PROMPT)
        return self


def _endpoint(value: Any) -> Any:
    return _ENDPOINTS.get(value, value) if isinstance(value, str) else value


_ENDPOINTS = {endpoint.value.capitalize(): endpoint for endpoint in Endpoint}
LimitedEndpoint = Annotated[
    Endpoint,
    BeforeValidator(_endpoint),
    PlainSerializer(lambda endpoint: endpoint.value.capitalize()),
    WithJsonSchema({"type": "string", "enum": list(_ENDPOINTS)}),
]
"""An endpoint as the API spells it: ``Chat`` for the contract's ``chat``."""


class RateLimit(ApiModel):
    """The most that one tenant may take in a window."""

    model_config = rules(rule("has(self.requests) || has(self.tokens)", _ONE_OF_RATE))

    name: ItemName = described("Tells the limits of a tier apart; refusals name it.")
    per: LimitWindow = described(
        "The window. Minute, Hour: any 60 or 3,600 seconds, rolling. Day, Month: of the calendar, "
        "in UTC."
    )
    requests: int | None = described(
        "Most requests in it.", unset="not limited in requests", ge=1, le=MAX_LIMIT
    )
    tokens: int | None = described(
        "Most tokens in it, prompt and output together. A request that is larger than all of it "
        "is refused with 413.",
        unset="not limited in tokens",
        ge=1,
        le=MAX_LIMIT,
    )
    endpoints: list[LimitedEndpoint] | None = described(
        "Endpoints that it counts; the others it leaves free.",
        unset="all",
        min_length=1,
        max_length=len(Endpoint),
        list_type="set",
    )
    models: list[ModelName] | None = described(
        "Models that it counts, by the names that clients send; the others it leaves free.",
        unset="all",
        min_length=1,
        max_length=MAX_MODELS,
        list_type="set",
    )

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if self.requests is None and self.tokens is None:
            raise ValueError(_ONE_OF_RATE)
        return self


Ratio = Annotated[
    str,
    StringConstraints(max_length=7, pattern=r"^(100(\.0{1,3})?|[0-9]{1,2}(\.[0-9]{1,3})?)$"),
    Field(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    "!self.matches('^[0-9]{1,3}([.][0-9]{1,3})?$') || double(self) > 0.0",
                    "must be above 0",
                )
            ]
        }
    ),
]
"""A percentage as text, since floats differ in their last digit from one writer to the next."""


class SloObjective(ApiModel):
    """One promise about latency."""

    metric: SloMetric = described(
        "What is promised. TimeToFirstToken, EndToEnd: from the arrival of a request. "
        "InterTokenLatency: between two tokens of a stream."
    )
    target: str = duration(
        "The latency promised. A request that could not keep that of TimeToFirstToken for its own "
        "tenant's backlog is refused with 429 at once.",
        low="1ms",
        high="24h",
    )
    ratio: Ratio | None = described(
        'Of how many requests, in percent, such as "99.5". One that the pool refuses (throttled, '
        "waited too long, no engine) or fails has not got it; one that its own limit, body or key "
        "ended does not count.",
        unset=f'"{DEFAULT_RATIO}"',
    )
    window: str | None = duration(
        "Over what time the ratio is judged.", low="1m", high="8760h", unset=DEFAULT_WINDOW
    )


class Slo(ApiModel):
    """What the tenants of a tier are promised."""

    objectives: list[SloObjective] | None = described(
        "At most one for each metric.",
        unset="nothing is promised",
        empty="the same",
        max_length=len(SloMetric),
        map_key="metric",
    )


class RecomputeBackoff(ApiModel):
    """How long a preempted request waits before it is computed again: so much for each request
    that is queued, up to a bound."""

    per_queued_request: str | None = duration(
        "For each request that waits in the pod.",
        low="0s",
        high="1m",
        unset=f"{DEFAULT_BACKOFF_PER_QUEUED_REQUEST_SECONDS * 1000:g}ms",
        zero="it does not wait",
    )
    max: str | None = duration(
        "But never longer.",
        low="0s",
        high="1h",
        unset=f"{DEFAULT_BACKOFF_MAX_SECONDS * 1000:g}ms",
        zero="it does not wait",
    )


class Preemption(ApiModel):
    """When requests of the tier are taken off the engine again."""

    evictable: bool | None = described(
        "Its requests in the engine may make room for a tier of higher priority; they are computed "
        "again later. Without the plug-in only those of which nothing was streamed yet.",
        unset="false",
    )
    recompute_backoff: RecomputeBackoff | None = described(
        "How long one waits before it is computed again.", unset="as if all its fields were unset"
    )
    max_per_request: int | None = described(
        "How often one request may be preempted.",
        unset=f"{DEFAULT_PREEMPTIONS_PER_REQUEST}",
        zero="never, as if evictable were false",
        ge=0,
        le=1000,
    )
