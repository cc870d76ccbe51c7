"""What of a body becomes prompt tokens: messages, the shapes of ``prompt`` and ``input``, tools.

``prompt`` and ``input`` have four shapes: a string, a list of strings, a list of token ids, a list
of lists of token ids. Anything else is refused; nothing is ever counted as no tokens at all.
"""

from __future__ import annotations

from typing import Any

import orjson

from tidegate_sidecar.errors import malformed
from tidegate_sidecar.estimate import IMAGE_TOKENS, MESSAGE_OVERHEAD_TOKENS, PromptSize
from tidegate_sidecar.fields import MAX_MESSAGES, MAX_PROMPTS, Endpoint

MAX_TOKEN_ID = 2**31 - 1


def prompt_size(endpoint: Endpoint, members: dict[str, Any]) -> PromptSize:
    """The size of a body's prompt(s); 400 where its shape is not one that OpenAI defines."""
    field = endpoint.prompt_field
    value = members.get(field)
    if value is None:
        raise malformed(f"'{field}' is required.", field)
    if field == "messages":
        return _chat_size(value, members)
    return _prompt_list_size(field, value)


def _utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _prompt_list_size(field: str, value: Any) -> PromptSize:
    if isinstance(value, str):
        return PromptSize(text_bytes=_utf8_length(value))
    if not isinstance(value, list) or not value:
        raise malformed(f"'{field}' must be a string or a non-empty list.", field)
    if isinstance(value[0], str):
        if not all(isinstance(item, str) for item in value):
            raise malformed(f"'{field}' must not mix strings with other values.", field)
        _check_prompts(field, value)
        return PromptSize(text_bytes=sum(map(_utf8_length, value)), prompts=len(value))
    if isinstance(value[0], list):
        _check_prompts(field, value)
        return PromptSize(
            fixed_tokens=sum(_token_ids(field, item) for item in value), prompts=len(value)
        )
    return PromptSize(fixed_tokens=_token_ids(field, value))


def _check_prompts(field: str, value: list[Any]) -> None:
    if len(value) > MAX_PROMPTS:
        raise malformed(f"'{field}' must have at most {MAX_PROMPTS} prompts.", field)


def _token_ids(field: str, value: Any) -> int:
    if not isinstance(value, list) or not value:
        raise malformed(f"'{field}' has an empty prompt or one that is no list of tokens.", field)
    for item in value:
        if type(item) is not int or not 0 <= item <= MAX_TOKEN_ID:
            raise malformed(f"'{field}' must hold strings or non-negative integers.", field)
    return len(value)


def _chat_size(messages: list[Any], members: dict[str, Any]) -> PromptSize:
    if not messages:
        raise malformed("'messages' must not be empty.", "messages")
    if len(messages) > MAX_MESSAGES:
        raise malformed(f"'messages' must have at most {MAX_MESSAGES} entries.", "messages")
    text_bytes = 0
    fixed = MESSAGE_OVERHEAD_TOKENS * len(messages)
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise malformed("Each message must be an object with a role.", f"messages[{index}]")
        content = message.get("content")
        if isinstance(content, str):
            text_bytes += _utf8_length(content)
        elif isinstance(content, list):
            for place, part in enumerate(content):
                part_bytes, part_tokens = _part_size(part, f"messages[{index}].content[{place}]")
                text_bytes += part_bytes
                fixed += part_tokens
        elif content is not None:
            raise malformed(
                "A message's content must be a string or a list of parts.",
                f"messages[{index}].content",
            )
        if calls := message.get("tool_calls"):
            text_bytes += _json_length(calls)
    for name in ("tools", "functions", "response_format"):
        if schema := members.get(name):
            text_bytes += _json_length(schema)
    return PromptSize(text_bytes=text_bytes, fixed_tokens=fixed)


def _json_length(value: Any) -> int:
    try:
        return len(orjson.dumps(value))
    except (TypeError, ValueError):  # a lone surrogate or an integer beyond 64 bits
        return len(repr(value))


def _part_size(part: Any, where: str) -> tuple[int, int]:
    """(text bytes, fixed tokens) of one content part."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("text", "refusal"):
        text = part.get(kind)
        if not isinstance(text, str):
            raise malformed(f"A part of type {kind} needs a string '{kind}'.", where)
        return _utf8_length(text), 0
    if kind == "image_url":
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else None
        if not isinstance(url, str):
            raise malformed("A part of type image_url needs image_url.url.", where)
        if not url[:5].lower() == "data:":
            # the engine would fetch it from inside the cluster
            raise malformed("Remote media is not fetched here; send a data: URL.", where)
        return 0, IMAGE_TOKENS
    if kind in ("input_audio", "file"):
        if not isinstance(part.get(kind), dict):
            raise malformed(f"A part of type {kind} needs an object '{kind}'.", where)
        return 0, IMAGE_TOKENS
    raise malformed(
        "A content part must be of type text, image_url, input_audio, file or refusal.", where
    )
