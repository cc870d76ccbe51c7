"""What ``POST /v1/responses`` takes: the items of its input and its tools, checked and measured.

Stateless: an item that refers to something stored, or a tool by which the engine would call out, is
refused, as are the fields that ask for it (:data:`.fields.RESPONSES_FIELDS`).
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from tidegate_sidecar import media
from tidegate_sidecar.errors import malformed
from tidegate_sidecar.estimate import MESSAGE_OVERHEAD_TOKENS, PromptSize
from tidegate_sidecar.fields import MAX_MESSAGES
from tidegate_sidecar.prompts import Members, PromptMeasure, check_length, required

_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_TOOLS = ("function", "custom")


def responses_size(members: Members, domains: Container[str]) -> PromptSize:
    """Input with instructions, tools and text format."""
    given = required(members, "input")
    measure = PromptMeasure(domains)
    if isinstance(given, str):
        measure.fixed_tokens += MESSAGE_OVERHEAD_TOKENS
        measure.texts.append(given)
    elif isinstance(given, list) and given:
        check_length("input", given, MAX_MESSAGES)
        measure.fixed_tokens += MESSAGE_OVERHEAD_TOKENS * len(given)
        for index, item in enumerate(given):
            _measure_item(measure, item, f"input[{index}]")
    else:
        raise malformed("'input' must be a string or a non-empty list.", "input")
    if instructions := members.get("instructions"):
        measure.fixed_tokens += MESSAGE_OVERHEAD_TOKENS
        measure.texts.append(instructions)
    for index, tool in enumerate(members.get("tools") or ()):
        if not isinstance(tool, dict) or tool.get("type") not in _TOOLS:
            raise malformed("Only tools of type function and custom are run.", f"tools[{index}]")
        measure.schema(tool)
    if text := members.get("text"):
        measure.schema(text)
    return measure.size()


def _measure_item(measure: PromptMeasure, item: Any, where: str) -> None:
    if not isinstance(item, dict):
        raise malformed("Each item of the input must be an object.", where)
    kind = item.get("type", "message")
    if kind == "message":
        if not isinstance(item.get("role"), str):
            raise malformed("A message needs a role.", where)
        _measure_content(measure, item.get("content"), f"{where}.content")
    elif kind in tuple(_CALLS):  # a client's `type` may be no string, and have no hash
        field = _CALLS[kind]
        measure.text(item.get(field), f"An item of type {kind} needs a string '{field}'.", where)
    elif kind in _OUTPUTS:
        _measure_content(measure, item.get("output"), f"{where}.output")
    elif kind == "reasoning":
        for field in ("content", "summary"):
            if item.get(field):
                _measure_content(measure, item[field], f"{where}.{field}")
    elif kind == "item_reference":
        raise malformed("item_reference is not supported: nothing is stored here.", where)
    else:
        raise malformed(
            "An item must be a message, a call of a function or custom tool, its output, or "
            "reasoning.",
            where,
        )


def _measure_content(measure: PromptMeasure, content: Any, where: str) -> None:
    if isinstance(content, str):
        measure.texts.append(content)
        return
    if not isinstance(content, list):
        raise malformed("Content must be a string or a list of parts.", where)
    for place, part in enumerate(content):
        _measure_part(measure, part, f"{where}[{place}]")


def _measure_part(measure: PromptMeasure, part: Any, where: str) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _TEXT_PARTS:
        measure.text(part.get("text"), f"A part of type {kind} needs a string 'text'.", where)
    elif kind == "input_image":
        if part.get("file_id") is not None:
            raise malformed("file_id is not supported: nothing is stored here.", where)
        url = part.get("image_url")
        measure.fixed_tokens += media.image_tokens(url, measure.domains, where)
    elif kind == "input_file":
        measure.texts.append(media.file_text(part, where))
    else:
        measure.part(part, where)
