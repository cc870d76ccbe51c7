"""What of a body becomes prompt tokens: the shapes of each endpoint's input, checked and measured.

``prompt`` and ``input`` have four shapes: a string, a list of strings, a list of token ids, a list
of lists of token ids. Anything else is refused; nothing is ever counted as no tokens at all. What
is neither text nor token ids is taken for tokens by the rules of :mod:`.media`; schemas (tools,
response formats, calls) count as the text that a chat template makes of them.

A rerank or score of one query with many documents is measured as a cross-encoder reads it, the
query before each document; a model that embeds each once is known by its usage.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import orjson

from tidegate_sidecar import media
from tidegate_sidecar.errors import malformed
from tidegate_sidecar.estimate import MESSAGE_OVERHEAD_TOKENS, PromptSize
from tidegate_sidecar.fields import MAX_DOCUMENTS, MAX_MESSAGES, MAX_PROMPTS, SCORE_PAIRS

Members = dict[str, Any]
MAX_TOKEN_ID = 2**31 - 1


class PromptMeasure:
    """Adds up what a prompt is made of."""

    def __init__(self, domains: Container[str]) -> None:
        self.domains = domains
        self.texts: list[str] = []
        self.fixed_tokens = 0

    def schema(self, value: Any) -> None:
        """JSON that the chat template puts into the prompt."""
        self.texts.append(json_text(value))

    def part(self, part: Any, where: str) -> None:
        """One part of a message's content, as chat and scores have it."""
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "refusal"):
            self.text(part.get(kind), f"A part of type {kind} needs a string '{kind}'.", where)
        elif kind == "image_url":
            image = part.get("image_url")
            url = image.get("url") if isinstance(image, dict) else None
            self.fixed_tokens += media.image_tokens(url, self.domains, where)
        elif kind == "input_audio":
            self.fixed_tokens += media.audio_tokens(part.get("input_audio"), where)
        elif kind == "file":
            self.texts.append(media.file_text(part.get("file"), where))
        else:
            raise malformed(
                "A content part must be of type text, image_url, input_audio, file or refusal.",
                where,
            )

    def text(self, value: Any, complaint: str, where: str) -> None:
        """Text; 400 with the complaint where it is none."""
        if not isinstance(value, str):
            raise malformed(complaint, where)
        self.texts.append(value)

    def size(self, prompts: int = 1) -> PromptSize:
        """All of it."""
        return PromptSize.of(self.texts, self.fixed_tokens, prompts)


def chat_size(members: Members, domains: Container[str]) -> PromptSize:
    """Messages, with tools and response format."""
    messages = required(members, "messages")
    measure = PromptMeasure(domains)
    _measure_messages(measure, messages)
    for name in ("tools", "functions", "response_format"):
        if schema := members.get(name):
            measure.schema(schema)
    return measure.size()


def prompt_list_size(field: str, members: Members, most: int) -> PromptSize:
    """The four shapes; a list of ``most`` prompts at most."""
    value = required(members, field)
    if isinstance(value, str):
        return PromptSize.of([value])
    if not isinstance(value, list) or not value:
        raise malformed(f"'{field}' must be a string or a non-empty list.", field)
    if isinstance(value[0], str):
        if not all(isinstance(item, str) for item in value):
            raise malformed(f"'{field}' must not mix strings with other values.", field)
        check_length(field, value, most)
        return PromptSize.of(value, prompts=len(value))
    if isinstance(value[0], list):
        check_length(field, value, most)
        tokens = sum(token_ids(field, item) for item in value)
        return PromptSize(fixed_tokens=tokens, prompts=len(value))
    return PromptSize(fixed_tokens=token_ids(field, value))


def completion_size(members: Members, domains: Container[str]) -> PromptSize:
    """``prompt``."""
    return prompt_list_size("prompt", members, MAX_PROMPTS)


def embedding_size(members: Members, domains: Container[str]) -> PromptSize:
    """``input``."""
    return prompt_list_size("input", members, MAX_DOCUMENTS)


def rerank_size(members: Members, domains: Container[str]) -> PromptSize:
    """One query with each of the documents."""
    if isinstance(required(members, "query"), list):
        raise malformed("'query' must be one text or object.", "query")
    return _pairs_size("query", "documents", members, domains)


def score_size(members: Members, domains: Container[str]) -> PromptSize:
    """One text with each of some, or pairs of as many."""
    return _pairs_size(*score_fields(members), members, domains)


def score_fields(members: Members) -> tuple[str, str]:
    """The names by which the two sides of a score came."""
    given = {name for pair in SCORE_PAIRS for name in pair if members.get(name) is not None}
    for pair in SCORE_PAIRS:
        if given == set(pair):
            return pair
    raise malformed("Two sides are required: 'queries' and 'documents', and no other.", "queries")


def tokenize_size(members: Members, domains: Container[str]) -> PromptSize:
    """A prompt or messages: what the engine's tokenizer has to read."""
    if (members.get("prompt") is None) == (members.get("messages") is None):
        raise malformed("Either 'prompt' or 'messages' is required.", "prompt")
    if members.get("messages") is not None:
        return chat_size(members, domains)
    return PromptSize.of([members["prompt"]])


def detokenize_size(members: Members, domains: Container[str]) -> PromptSize:
    """A list of token ids."""
    return PromptSize(fixed_tokens=token_ids("tokens", required(members, "tokens")))


def required(members: Members, field: str) -> Any:
    """The member's value; 400 where it is absent or null."""
    value = members.get(field)
    if value is None:
        raise malformed(f"'{field}' is required.", field)
    return value


def check_length(field: str, value: list[Any], most: int) -> None:
    """400 where the list is longer."""
    if len(value) > most:
        raise malformed(f"'{field}' must have at most {most} entries.", field)


def token_ids(field: str, value: Any) -> int:
    """How many token ids; 400 where they are none."""
    if not isinstance(value, list) or not value:
        raise malformed(f"'{field}' has an empty prompt or one that is no list of tokens.", field)
    for item in value:
        if type(item) is not int or not 0 <= item <= MAX_TOKEN_ID:
            raise malformed(f"'{field}' must hold strings or non-negative integers.", field)
    return len(value)


def json_text(value: Any) -> str:
    """A value as JSON."""
    try:
        return orjson.dumps(value).decode()
    except (TypeError, ValueError):  # a lone surrogate or an integer beyond 64 bits
        return repr(value)


def _measure_messages(measure: PromptMeasure, messages: list[Any]) -> None:
    if not messages:
        raise malformed("'messages' must not be empty.", "messages")
    check_length("messages", messages, MAX_MESSAGES)
    measure.fixed_tokens += MESSAGE_OVERHEAD_TOKENS * len(messages)
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise malformed("Each message must be an object with a role.", f"messages[{index}]")
        content = message.get("content")
        if isinstance(content, str):
            measure.texts.append(content)
        elif isinstance(content, list):
            for place, part in enumerate(content):
                measure.part(part, f"messages[{index}].content[{place}]")
        elif content is not None:
            raise malformed(
                "A message's content must be a string or a list of parts.",
                f"messages[{index}].content",
            )
        if calls := message.get("tool_calls"):
            measure.schema(calls)


def _pairs_size(left: str, right: str, members: Members, domains: Container[str]) -> PromptSize:
    lefts, rights = side(left, members), side(right, members)
    if len(lefts) not in (1, len(rights)):
        raise malformed(f"'{left}' must be one, or as many as '{right}'.", left)
    beside = _side_size(left, lefts, domains)
    documents = _side_size(right, rights, domains)
    # Measured once, however many documents it is read beside: it may be as long as the body.
    times = len(rights) if len(lefts) == 1 else 1
    return PromptSize(
        text_bytes=times * beside.text_bytes + documents.text_bytes,
        fixed_tokens=times * beside.fixed_tokens + documents.fixed_tokens,
        prompts=len(rights),
        texts=[*beside.texts] * times + [*documents.texts],
    )


def _side_size(field: str, items: list[Any], domains: Container[str]) -> PromptSize:
    measure = PromptMeasure(domains)
    for index, item in enumerate(items):
        measure_input(measure, item, f"{field}[{index}]")
    return measure.size()


def side(field: str, members: Members) -> list[Any]:
    """One side of a rerank or score as a list."""
    value = required(members, field)
    if not isinstance(value, list):
        return [value]
    if not value:
        raise malformed(f"'{field}' must not be empty.", field)
    check_length(field, value, MAX_DOCUMENTS)
    return value


def measure_input(measure: PromptMeasure, item: Any, where: str) -> None:
    """A text, or an object with content parts."""
    if isinstance(item, str):
        measure.texts.append(item)
        return
    content = item.get("content") if isinstance(item, dict) else None
    if not isinstance(content, list) or not content:
        raise malformed("It must be a string or an object with a list 'content'.", where)
    for place, part in enumerate(content):
        measure.part(part, f"{where}.content[{place}]")
