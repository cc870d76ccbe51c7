"""The routes of the tenants' port that reach the engine, and what is particular to each.

OpenAI's (chat, completions, responses, embeddings) and those that vLLM 0.32 adds: rerank and score,
each by all of its paths, tokenize and detokenize. Which of them an engine serves depends on its
model; what it does not serve it answers itself, with 404, and the client is told which it does.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tidegate.scheduling import contracts
from tidegate_sidecar.estimate import PromptSize
from tidegate_sidecar.fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    DETOKENIZE_FIELDS,
    EMBEDDING_FIELDS,
    RERANK_FIELDS,
    RESPONSES_FIELDS,
    SCORE_FIELDS,
    TOKENIZE_FIELDS,
    Check,
)
from tidegate_sidecar.prompts import (
    chat_size,
    completion_size,
    detokenize_size,
    embedding_size,
    rerank_size,
    score_size,
    tokenize_size,
)
from tidegate_sidecar.responses_input import responses_size

Measure = Callable[[dict[str, Any], Container[str]], PromptSize]
"""A body's members and the hosts of remote media allowed, to the size of its prompts; 400 else."""


class StreamKind(Enum):
    """How an endpoint streams. Chunks: deltas of choices, usage where it is asked for, ``[DONE]``.

    Typed: the events of the Responses API; the last one holds the whole answer.
    """

    CHUNKS = "chunks"
    TYPED = "typed"


@dataclass(frozen=True, slots=True, eq=False)
class Endpoint:
    """One route that reaches the engine; there is one of each, so they are equal by identity."""

    name: str
    path: str
    fields: Mapping[str, Check]
    prompt_field: str
    measure: Measure
    output_fields: tuple[str, ...] = ()
    """What bounds its output, the first that is given; empty: it produces none."""
    stream: StreamKind | None = None
    """Unset: it does not."""
    scheduled: bool = True
    """It takes the engine's time; False: only its tokenizer."""
    truncates: bool = True
    """vLLM cuts its prompt where it is told to; False: one that is too long is refused."""
    usage_is_prompt: bool = True
    """What it reports as used of the prompt is what was measured of it; False: it depends on the
    model how often a text is read."""
    own_members: tuple[tuple[str, bytes], ...] = ()
    """What the engine is told whatever the client says, as JSON by key."""

    generates: bool = field(init=False)
    """Whether it produces output tokens."""
    task: contracts.Task | None = field(init=False)
    """What a model must do to serve it; None: any does."""
    kind: contracts.Endpoint | None = field(init=False)
    """What rate limits call it; None: they do not count it."""

    def __post_init__(self) -> None:
        kind = contracts.Endpoint(self.name) if self.scheduled else None
        generates = bool(self.output_fields)
        task = contracts.Task.GENERATE if generates else contracts.Task.EMBED
        object.__setattr__(self, "generates", generates)
        object.__setattr__(self, "task", task if self.scheduled else None)
        object.__setattr__(self, "kind", kind)


CHAT = Endpoint(
    "chat",
    "/v1/chat/completions",
    CHAT_FIELDS,
    "messages",
    chat_size,
    output_fields=("max_completion_tokens", "max_tokens"),
    stream=StreamKind.CHUNKS,
)
COMPLETIONS = Endpoint(
    "completions",
    "/v1/completions",
    COMPLETION_FIELDS,
    "prompt",
    completion_size,
    output_fields=("max_tokens",),
    stream=StreamKind.CHUNKS,
)
RESPONSES = Endpoint(
    "responses",
    "/v1/responses",
    RESPONSES_FIELDS,
    "input",
    responses_size,
    output_fields=("max_output_tokens",),
    stream=StreamKind.TYPED,
    truncates=False,
    own_members=(("store", b"false"),),
)
EMBEDDINGS = Endpoint("embeddings", "/v1/embeddings", EMBEDDING_FIELDS, "input", embedding_size)
RERANKS = tuple(
    Endpoint("rerank", path, RERANK_FIELDS, "documents", rerank_size, usage_is_prompt=False)
    for path in ("/v1/rerank", "/rerank", "/v2/rerank")
)
SCORES = tuple(
    Endpoint("score", path, SCORE_FIELDS, "documents", score_size, usage_is_prompt=False)
    for path in ("/v1/score", "/score")
)
TOKENIZE = Endpoint(
    "tokenize", "/tokenize", TOKENIZE_FIELDS, "prompt", tokenize_size, scheduled=False
)
DETOKENIZE = Endpoint(
    "detokenize", "/detokenize", DETOKENIZE_FIELDS, "tokens", detokenize_size, scheduled=False
)

ENDPOINTS: dict[str, Endpoint] = {
    endpoint.path: endpoint
    for endpoint in (
        CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS, *RERANKS, *SCORES, TOKENIZE, DETOKENIZE,
    )
}  # fmt: skip
