"""A JSON object from a client: parsed strictly, forwarded byte by byte.

The engine must see exactly what was checked, so the check and the forwarded bytes come from one
text: duplicate keys are refused at any depth (parsers differ in which one wins), as are NaN,
Infinity, any encoding but UTF-8, and a nesting beyond :data:`MAX_DEPTH`, at which no parser or walk
behind it runs out of stack. Members that Tidegate sets are spliced into the client's own
bytes; all others stay as they were written, number formats, escapes and white space included.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tidegate_sidecar.errors import ApiError, malformed

MAX_DEPTH = 128
"""Levels of objects and lists, the body's own included. OpenAI's own fields have a dozen, and the
schema of a tool some more."""
_SHORT = 2 * MAX_DEPTH
"""Characters that cannot be nested deeper: a level takes two."""

_WHITE_SPACE = " \t\n\r"
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_BLANK = re.compile(rb"[ \t\n\r]*")
_KEY = re.compile(rb"[ \t\n\r,]*(" + _STRING + rb")[ \t\n\r]*:[ \t\n\r]*", re.DOTALL)
_NESTED = re.compile(_STRING + rb"|[{}\[\]]", re.DOTALL)
_SCALAR = re.compile(_STRING + rb"|[^,}\]\s]+", re.DOTALL)


class _DuplicateKeyError(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKeyError(key)
            seen.add(key)
    return members


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


_decode = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant).raw_decode


def parse_object(raw: bytes) -> dict[str, Any]:
    """The members of a JSON object; an :class:`~tidegate_sidecar.errors.ApiError` (400) else."""
    try:
        text = raw.decode("utf-8").strip(_WHITE_SPACE)
        value, end = _decode(text)
    except _DuplicateKeyError as error:
        key = str(error)[:64]
        raise malformed(f"The JSON key {key!r} appears twice in one object.", key) from None
    except UnicodeDecodeError:
        raise malformed("The body is not UTF-8.") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        raise malformed("The body is not valid JSON.") from None
    if end != len(text):
        raise malformed("The body is not valid JSON.")
    if not isinstance(value, dict):
        raise malformed("The body must be a JSON object.")
    if len(text) > _SHORT and _is_too_deep(value):
        raise _too_deep()
    return value


def _is_too_deep(value: dict[str, Any]) -> bool:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return False
    return True


def _too_deep() -> ApiError:
    return malformed(f"The JSON body is nested deeper than {MAX_DEPTH} levels.")


def splice(raw: bytes, members: Mapping[str, Any], new: Mapping[str, bytes]) -> bytes:
    """``raw`` with each member of ``new`` (JSON text by key) replaced in place or added.

    ``raw`` is the text of the object ``members``, non-empty, as :func:`parse_object` accepted it.
    """
    if not new:
        return raw
    replaced = [key for key in new if key in members]
    parts: list[bytes] = []
    position = 0
    if replaced:
        for key, start, end in _spans(raw):
            if key in new:
                parts += (raw[position:start], new[key])
                position = end
    close = raw.rindex(b"}")
    parts.append(raw[position:close])
    for key, text in new.items():
        if key not in members:
            parts += (b',"', key.encode(), b'":', text)
    parts.append(raw[close:])
    return b"".join(parts)


def _spans(raw: bytes) -> list[tuple[str, int, int]]:
    """(key, start and end of its value) of every top-level member of a valid object."""
    spans = []
    position = raw.index(b"{") + 1
    while match := _KEY.match(raw, position):
        key = json.loads(match[1])
        start = match.end()
        end = _value_end(raw, start)
        spans.append((key, start, end))
        blank = _BLANK.match(raw, end)
        position = blank.end() if blank else end
    return spans


def _value_end(raw: bytes, start: int) -> int:
    if raw[start] not in b"{[":
        match = _SCALAR.match(raw, start)
        assert match is not None, "the text was parsed before"
        return match.end()
    depth = 0
    for match in _NESTED.finditer(raw, start):
        token = match[0]
        if token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return match.end()
    raise ValueError("not the text of a valid JSON object")
