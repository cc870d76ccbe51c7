"""Lists of documents, cut into parts that the engine is sent one by one, and joined again.

Theory of operation: a request of 10,000 documents would hold the engine until all of it is done.
Cut into parts of about one full batch, it is as good for the engine, and between two of its parts
others have their turn. Each part goes through the scheduler by itself
(:attr:`tidegate.scheduling.request.Request.parts`); queue bound, limits, bill and outcome are one.

What can be cut: embeddings' lists of prompts, the documents of a rerank, the pairs of a score. A
part's body says what the client's own does of a slice of them. Answers come in any order; each is
parsed once, its entries renumbered, and kept as bytes. Embeddings and scores are joined in the
order of the documents, a rerank by relevance, the best ``top_n`` of all.

Bound: a part has at most ``budget_tokens`` and ``most_documents``, or one document.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from tidegate.scheduling.request import Usage
from tidegate_sidecar.bodies import Body
from tidegate_sidecar.endpoints import EMBEDDINGS, RERANKS, SCORES
from tidegate_sidecar.estimate import Estimator
from tidegate_sidecar.prompts import PromptMeasure, measure_input, score_fields, side
from tidegate_sidecar.sse import usage_of

MAX_ANSWER_BYTES = 256 << 20
"""Of a joined answer."""


class PartError(Exception):
    """An answer is not one of the endpoint's."""


@dataclass(frozen=True, slots=True)
class Part:
    """A slice of the documents."""

    start: int
    count: int
    prompt_tokens: int


class Parts:
    """A body's documents in parts."""

    def __init__(self, body: Body, fields: tuple[str, ...], slices: Sequence[Part]) -> None:
        self.slices = slices
        self._lists: dict[str, list[Any]] = {field: body.members[field] for field in fields}
        # Without top_n all are ranked: which are the best is known of the whole only.
        mine = {*fields, "top_n"}
        self._others = {key: value for key, value in body.members.items() if key not in mine}

    def raw(self, part: Part) -> bytes:
        """The client's body with no more than the part's documents.

        Written anew: its lists are most of it, and to find their ends in its bytes takes longer.
        """
        end = part.start + part.count
        slices = {field: listed[part.start : end] for field, listed in self._lists.items()}
        return json.dumps({**self._others, **slices}).encode()


def cut(body: Body, estimator: Estimator, budget_tokens: int, most_documents: int) -> Parts | None:
    """The parts of a body; None: it is no list, or one part has room for all of it."""
    endpoint = body.endpoint
    if endpoint is EMBEDDINGS:
        documents = body.members["input"]
        fields: tuple[str, ...] = ("input",)
        if isinstance(documents, str) or isinstance(documents[0], int):
            return None
    elif endpoint in RERANKS:
        fields, documents = ("documents",), body.members["documents"]
    elif endpoint in SCORES:
        left, right = score_fields(body.members)
        documents = body.members[right]
        paired = len(side(left, body.members)) > 1
        fields = (left, right) if paired else (right,)
    else:
        return None
    if not isinstance(documents, list) or len(documents) == 1:
        return None
    sizes = _sizes(body, fields, documents, estimator)
    if len(sizes) <= most_documents and sum(sizes) <= budget_tokens:
        return None
    return Parts(body, fields, _packed(sizes, budget_tokens, most_documents))


def _sizes(
    body: Body, fields: tuple[str, ...], documents: list[Any], estimator: Estimator
) -> list[int]:
    """Tokens of each document with what the engine reads beside it."""
    if body.endpoint is EMBEDDINGS and isinstance(documents[0], list):
        return [len(document) for document in documents]
    sizes = [_tokens(estimator, document) for document in documents]
    if len(fields) == 2:
        beside = [_tokens(estimator, left) for left in body.members[fields[0]]]
        return [left + right for left, right in zip(beside, sizes, strict=True)]
    if body.endpoint in RERANKS:
        one = body.members["query"]
    elif body.endpoint in SCORES:
        one = side(score_fields(body.members)[0], body.members)[0]
    else:
        return sizes
    tokens = _tokens(estimator, one)
    return [tokens + size for size in sizes]


def _tokens(estimator: Estimator, document: Any) -> int:
    if isinstance(document, str):
        return estimator.text_tokens(document)
    measure = PromptMeasure(domains=_ANY)
    measure_input(measure, document, "")
    return estimator.tokens(measure.size())


class _AnyDomain:
    """Documents were checked when their body was."""

    def __contains__(self, domain: object) -> bool:
        return True


_ANY = _AnyDomain()


def _packed(sizes: list[int], budget_tokens: int, most_documents: int) -> list[Part]:
    parts = []
    start, tokens = 0, 0
    for index, size in enumerate(sizes):
        full = tokens + size > budget_tokens or index - start >= most_documents
        if full and index > start:
            parts.append(Part(start, index - start, tokens))
            start, tokens = index, 0
        tokens += size
    parts.append(Part(start, len(sizes) - start, tokens))
    return parts


class PartsAnswer:
    """The answers of all parts, while they come."""

    def __init__(self, body: Body, parts: Parts) -> None:
        self._ranked = body.endpoint in RERANKS
        self._top_n: int = body.members.get("top_n") or 0
        self._slices = parts.slices
        self._pieces: list[bytes] = [b""] * len(parts.slices)
        self._ranking: list[tuple[float, int, bytes]] = []
        self._envelope: dict[str, Any] = {}
        self._usage: dict[str, int | None] = {}
        self._size_bytes = 0

    def take(self, number: int, answer: bytes) -> Usage | None:
        """Take in the answer of a part; what it reports as used. :class:`PartError`."""
        part = self._slices[number]
        try:
            members = orjson.loads(answer)
            entries = members.pop("results" if self._ranked else "data")
            if len(entries) != part.count:
                raise PartError("an answer has not as many entries as documents")
            for entry in entries:
                entry["index"] += part.start
            if self._ranked:
                self._ranking += [
                    (-entry["relevance_score"], entry["index"], orjson.dumps(entry))
                    for entry in entries
                ]
            else:
                self._pieces[number] = orjson.dumps(entries)[1:-1]
        except (AttributeError, KeyError, TypeError, ValueError):
            raise PartError("an answer has not the shape of one") from None
        self._size_bytes += len(answer)
        if self._size_bytes > MAX_ANSWER_BYTES:
            raise PartError("the answer is too large")
        usage = usage_of(members)
        self._add_usage(members.pop("usage", None))
        if number == 0 or not self._envelope:
            self._envelope = members
        return usage

    def joined(self) -> bytes:
        """The one answer, once all parts were taken."""
        if self._ranked:
            self._ranking.sort()
            best = self._ranking[: self._top_n or None]
            entries = b",".join([entry for _, _, entry in best])
        else:
            entries = b",".join(self._pieces)
        name = "results" if self._ranked else "data"
        listed = {name: orjson.Fragment(b"[" + entries + b"]")}
        return orjson.dumps({**self._envelope, **listed, "usage": self._usage})

    def _add_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            for name, count in usage.items():
                if type(count) is int:
                    self._usage[name] = (self._usage.get(name) or 0) + count
                else:
                    self._usage.setdefault(name, None)  # details do not add up
