"""Where a pool tells of its requests."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.scheduling.contracts.codec import ContractError, described


@dataclass(frozen=True, slots=True)
class Observability:
    """Where spans go."""

    otlp_endpoint: str | None = described(
        "URL to which OpenTelemetry spans are posted (OTLP over HTTP, protobuf), such as "
        "http://collector:4318/v1/traces; null: nothing is traced.",
        default=None,
        low=1,
        high=2048,
    )
    otlp_sample_percent: int = described(
        "Of the requests whose client decided nothing, how many are traced; a client's own "
        "decision (the sampled flag of its `traceparent`) holds.",
        default=100,
        low=0,
        high=100,
    )

    def __post_init__(self) -> None:
        if self.otlp_endpoint is not None and not self.otlp_endpoint.startswith(
            ("http://", "https://")
        ):
            raise ContractError("otlp_endpoint: must begin with http:// or https://")
