"""Request bodies of a model that pools: embeddings, scores and reranks, as vLLM reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.simulator.fake_engine.bodies import checked, prompt_list, truncated
from tidegate.simulator.fake_engine.errors import ApiError
from tidegate.simulator.fake_engine.members import (
    cache_salt,
    integer,
    model_name,
    priority,
    typed,
)
from tidegate.simulator.fake_engine.text import Prompt

_SIDES = (
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
    ("text_1", "text_2"),
)


@dataclass(frozen=True, slots=True)
class PoolingBody:
    """What is to be read, and how the vectors are written (embeddings only)."""

    model: str | None
    prompts: tuple[Prompt, ...]
    priority: int
    cache_salt: str
    base64: bool = False


@dataclass(frozen=True, slots=True)
class RerankBody:
    """A query with each of its documents, which come back with the answer."""

    pairs: PoolingBody
    documents: tuple[str, ...]
    top_n: int
    """0: all."""


def parse_embedding(body: Mapping[str, Any]) -> PoolingBody:
    """A body of ``POST /v1/embeddings``."""
    encoding = typed(body, "encoding_format", str, "float or base64") or "float"
    if encoding not in ("float", "base64"):
        raise ApiError(400, "encoding_format must be float or base64", "encoding_format")
    if integer(body, "dimensions", 1) is not None:
        raise ApiError(
            400,
            "The model does not support matryoshka representation, "
            "changing output dimensions will lead to poor results.",
            "dimensions",
        )
    prompts = tuple(prompt for prompt, _ in prompt_list(body, "input"))
    return _pooling_body(body, prompts, base64=encoding == "base64")


def parse_score(body: Mapping[str, Any]) -> PoolingBody:
    """A body of ``POST /score``: one text against some, or pairs of as many."""
    for left, right in _SIDES:
        if left in body and right in body:
            return _pairs(body, _texts(body, left), _texts(body, right))
    raise ApiError(400, "Two sides are required: queries and documents", "queries")


def parse_rerank(body: Mapping[str, Any]) -> RerankBody:
    """A body of ``POST /rerank``."""
    query = typed(body, "query", str, "a string")
    if query is None:
        raise ApiError(400, "query is required", "query")
    documents = _texts(body, "documents")
    top_n = integer(body, "top_n", 0) or 0
    return RerankBody(_pairs(body, [query], documents), tuple(documents), top_n)


def _texts(body: Mapping[str, Any], name: str) -> list[str]:
    value = typed(body, name, (str, list), "a string or a list of strings")
    texts = [value] if isinstance(value, str) else value or []
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ApiError(400, f"{name} must be a string or a non-empty list of strings", name)
    return list(texts)


def _pairs(body: Mapping[str, Any], lefts: list[str], rights: list[str]) -> PoolingBody:
    """As a cross-encoder reads them, one before the other."""
    if len(lefts) == 1:
        lefts = lefts * len(rights)
    if len(lefts) != len(rights):
        raise ApiError(400, "Input lengths must be either 1:1, 1:N or N:N")
    texts = [f"{left}<|sep|>{right}" for left, right in zip(lefts, rights, strict=True)]
    return _pooling_body(body, tuple(checked(Prompt.from_text(text), "query") for text in texts))


def _pooling_body(
    body: Mapping[str, Any], prompts: tuple[Prompt, ...], *, base64: bool = False
) -> PoolingBody:
    return PoolingBody(
        model=model_name(body),
        prompts=truncated(body, prompts),
        priority=priority(body),
        cache_salt=cache_salt(body),
        base64=base64,
    )
