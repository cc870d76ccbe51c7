"""Load scenario: which tenants send what, when. Written by people as YAML, one file per scenario.

A scenario and its seed determine every request (time, lengths, prompt): two runs send the same. It
names no server: where to send is the caller's choice. Times are seconds from the start of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tidegate.scheduling.contracts.codec import ContractError, described

SCENARIO_VERSION = 1


class Endpoint(StrEnum):
    """What a tenant calls: chat, completions, responses, embeddings (OpenAI), rerank, score (vLLM).

    A scenario names one of chat, completions and embeddings.
    """

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SCORE = "score"


LOAD_ENDPOINTS = (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS)
"""What the load generator and the simulator send."""


class ArrivalProcess(StrEnum):
    """When a tenant sends.

    Closed: ``concurrency`` callers, each sends when its last answer ended. Poisson, Constant:
    ``rate_per_second``, whatever the answers do. Burst: all at ``start_seconds``. Trace: at the
    times of ``trace``. BuiltIn: what the tenant of that name sends in ``workload``, some of it
    because an answer has come.
    """

    CLOSED = "Closed"
    POISSON = "Poisson"
    CONSTANT = "Constant"
    BURST = "Burst"
    TRACE = "Trace"
    BUILT_IN = "BuiltIn"


class BuiltInWorkload(StrEnum):
    """Workloads that Tidegate brings, with tenants of their own (docs/simulate.md).

    servegen reads $TIDEGATE_TRACES/servegen.
    """

    MIXED_NODE = "mixed-node"
    MIXED_NODE_HALF = "mixed-node-half"
    MIXED_NODE_OPEN = "mixed-node-open"
    LONG_PROMPTS = "long-prompts"
    AVALANCHE = "avalanche"
    POISON = "poison"
    SERVEGEN = "servegen"
    TEN_THOUSAND_AGAINST_FIVE = "ten-thousand-against-five"


class TraceFormat(StrEnum):
    """Public trace formats, and Tidegate's own.

    AzureCSV: AzurePublicDataset's LLM inference traces (TIMESTAMP,ContextTokens,GeneratedTokens).
    MooncakeJSONL: Mooncake's FAST'25 traces, whose hash_ids become shared prefixes. VTCArtifact:
    result files of the VTC paper's artifact, whose adapters are tenants. UsageJSONL: usage records
    of a sidecar, or a sample of its traffic.
    """

    AZURE_CSV = "AzureCSV"
    MOONCAKE_JSONL = "MooncakeJSONL"
    VTC_ARTIFACT = "VTCArtifact"
    USAGE_JSONL = "UsageJSONL"


_WITH_TENANTS = (TraceFormat.VTC_ARTIFACT, TraceFormat.USAGE_JSONL)


class LengthShape(StrEnum):
    """How lengths are distributed."""

    CONSTANT = "Constant"
    UNIFORM = "Uniform"
    LOG_NORMAL = "LogNormal"


@dataclass(frozen=True, slots=True)
class Arrival:
    """An arrival process and its one parameter."""

    process: ArrivalProcess = described("When requests are sent.")
    concurrency: int | None = described(
        "Callers; for Closed, required there.", default=None, low=1, high=20_000
    )
    rate_per_second: float | None = described(
        "Mean requests per second; for Poisson and Constant, required there.",
        default=None,
        low=0.0001,
        high=100_000,
    )
    workload: BuiltInWorkload | None = described(
        "The built-in workload; for BuiltIn, required there, and the same for all of a scenario.",
        default=None,
    )

    def __post_init__(self) -> None:
        wants = {
            ArrivalProcess.CLOSED: "concurrency",
            ArrivalProcess.POISSON: "rate_per_second",
            ArrivalProcess.CONSTANT: "rate_per_second",
            ArrivalProcess.BUILT_IN: "workload",
        }.get(self.process)
        for name in ("concurrency", "rate_per_second", "workload"):
            _require_exactly_where(self, name, name == wants, str(self.process))


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests from a file, and the part of it that is replayed."""

    format: TraceFormat = described("Its format.")
    path: str = described(
        "The file, relative to the scenario's folder or to $TIDEGATE_TRACES.", low=1, high=4096
    )
    tenant: str | None = described(
        "Only the requests of this tenant of the trace; unset: all. VTCArtifact and UsageJSONL "
        "only.",
        default=None,
        low=1,
        high=253,
    )
    start_seconds: float = described("Where in the trace to begin.", default=0.0, low=0)
    length_seconds: float | None = described(
        "How much of the trace to replay; unset: to its end.", default=None, low=0.001
    )
    speedup: float = described(
        "Trace seconds per second of the run.", default=1.0, low=0.001, high=100_000
    )
    length_divisor: int = described(
        "Prompt and output lengths are divided by it (rounded up).", default=1, low=1, high=100_000
    )

    def __post_init__(self) -> None:
        if self.tenant is not None and self.format not in _WITH_TENANTS:
            raise ContractError(f"tenant: a {self.format} trace has no tenants; leave it unset")


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """A distribution of token counts; rounded, and at least 1."""

    distribution: LengthShape = described("Its shape.")
    value: int | None = described("Constant: every length.", default=None, low=1, high=10_000_000)
    low: int | None = described("Uniform: the shortest.", default=None, low=1, high=10_000_000)
    high: int | None = described(
        "Uniform: the longest; LogNormal: cut off here (unset: not).",
        default=None,
        low=1,
        high=10_000_000,
    )
    median: float | None = described("LogNormal: the median.", default=None, low=1, high=10_000_000)
    sigma: float | None = described(
        "LogNormal: standard deviation of the length's natural logarithm.",
        default=None,
        low=0,
        high=5,
    )

    def __post_init__(self) -> None:
        required, optional = {
            LengthShape.CONSTANT: ({"value"}, set[str]()),
            LengthShape.UNIFORM: ({"low", "high"}, set[str]()),
            LengthShape.LOG_NORMAL: ({"median", "sigma"}, {"high"}),
        }[self.distribution]
        for name in ("value", "low", "high", "median", "sigma"):
            if name not in optional:
                _require_exactly_where(self, name, name in required, str(self.distribution))
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ContractError(f"low: {self.low} is above high: {self.high}")


@dataclass(frozen=True, slots=True)
class TenantLoad:
    """What one tenant sends."""

    name: str = described(
        "Its name in the report, and in a built-in workload; unique in the scenario.",
        low=1,
        high=317,
    )
    arrival: Arrival = described("When it sends.")
    tier: str = described("Tier under which the report sums it.", default="-", low=1, high=63)
    key: str | None = described(
        "Its API key; unset, and no key_env either: none is sent.",
        default=None,
        low=1,
        high=1024,
        secret=True,
    )
    key_env: str | None = described(
        "Environment variable that holds its API key.", default=None, low=1, high=253
    )
    endpoint: Endpoint = described("What it calls.", default=Endpoint.CHAT)
    stream: bool = described("Asks for a stream; never for embeddings.", default=True)
    start_seconds: float = described("When it begins.", default=0.0, low=0)
    requests: int | None = described(
        "Most requests it sends; unset: as many as fit duration_seconds. Required for Burst.",
        default=None,
        low=1,
        high=10_000_000,
    )
    trace: Trace | None = described(
        "Where times and lengths come from; for Trace, required there.", default=None
    )
    prompt_tokens: LengthDistribution | None = described(
        "Prompt lengths; required without a trace or a built-in workload.", default=None
    )
    output_tokens: LengthDistribution | None = described(
        "Output lengths (sent as max_tokens); required without a trace or a built-in workload, "
        "never for embeddings.",
        default=None,
    )
    prompt_as_token_ids: bool = described(
        "Prompts are sent as token ids, so that their length is exact for every tokenizer; "
        "completions and embeddings only. Else as text of 4 bytes a token.",
        default=False,
    )
    token_id_limit: int = described(
        "Token ids sent are below it (at most the model's vocabulary).",
        default=256,
        low=16,
        high=10_000_000,
    )
    priority: int | None = described(
        "Sent as x-tidegate-priority; unset: not sent.", default=None, low=-(2**31), high=2**31 - 1
    )
    deadline_ms: int | None = described(
        "Sent as x-tidegate-deadline-ms; unset: not sent.", default=None, low=1
    )
    ignore_eos: bool = described(
        "Asks a vLLM engine to go on to max_tokens (an extension: a pool may refuse it).",
        default=False,
    )

    def __post_init__(self) -> None:
        if self.key is not None and self.key_env is not None:
            raise ContractError("key: set it or key_env, not both")
        self._check_source()
        self._check_endpoint()

    def _check_source(self) -> None:
        process = self.arrival.process
        drawn = process not in (ArrivalProcess.TRACE, ArrivalProcess.BUILT_IN)
        embeds = self.endpoint is Endpoint.EMBEDDINGS
        _require_exactly_where(self, "trace", process is ArrivalProcess.TRACE, str(process))
        _require_exactly_where(self, "prompt_tokens", drawn, str(process))
        if not embeds:
            _require_exactly_where(self, "output_tokens", drawn, str(process))
        elif self.output_tokens is not None:
            raise ContractError("output_tokens: embeddings have no output; leave it unset")
        if process is ArrivalProcess.BURST and self.requests is None:
            raise ContractError("requests: required for Burst")
        if process is ArrivalProcess.BUILT_IN:
            if self.start_seconds:
                raise ContractError("start_seconds: means nothing for BuiltIn; leave it unset")
            _require_exactly_where(self, "requests", False, str(process))
            if embeds:
                raise ContractError("endpoint: a built-in workload has outputs; it cannot embed")

    def _check_endpoint(self) -> None:
        if self.endpoint not in LOAD_ENDPOINTS:
            raise ContractError(f"endpoint: must be one of {', '.join(LOAD_ENDPOINTS)}")
        if self.prompt_as_token_ids and self.endpoint is Endpoint.CHAT:
            raise ContractError("prompt_as_token_ids: chat takes text only; use completions")
        if self.ignore_eos and self.endpoint is Endpoint.EMBEDDINGS:
            raise ContractError("ignore_eos: embeddings have no output; leave it unset")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A multi-tenant workload."""

    version: int = described(
        "Version of this contract.", low=SCENARIO_VERSION, high=SCENARIO_VERSION
    )
    name: str = described("Its name in the report.", low=1, high=253)
    model: str = described("Model that clients ask for.", low=1, high=253)
    duration_seconds: float = described(
        "No request is sent after it; shares and rates are measured up to it.",
        low=0.001,
        high=1_000_000,
    )
    tenants: tuple[TenantLoad, ...] = described("Who sends.", low=1, high=10_000)
    drain_seconds: float = described(
        "How long after duration_seconds the last answers are awaited.",
        default=300.0,
        low=0,
        high=1_000_000,
    )
    seed: int = described("Seed of everything random.", default=0, low=0, high=2**63 - 1)
    description: str = described("What it shows.", default="", high=4096)

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for tenant in self.tenants:
            if tenant.name in seen:
                raise ContractError(f"tenants: {tenant.name!r} is listed twice")
            seen.add(tenant.name)
        built_in = {tenant.arrival.workload for tenant in self.tenants} - {None}
        if len(built_in) > 1:
            raise ContractError("tenants: only one built-in workload in a scenario")


def _require_exactly_where(owner: object, name: str, wanted: bool, kind: str) -> None:
    given = getattr(owner, name) is not None
    if wanted and not given:
        raise ContractError(f"{name}: required for {kind}")
    if given and not wanted:
        raise ContractError(f"{name}: means nothing for {kind}; leave it unset")
