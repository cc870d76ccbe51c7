"""An engine's answer other than 200, as its client should see it.

What the engine says of the client's request (a prompt longer than the context, a bad schema) passes
on with the engine's own words. What it says of itself does not: an overload becomes 429 with its
Retry-After, an engine that cannot serve 503, anything else 502 without the engine's internals.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from tidegate.scheduling.contracts import Task
from tidegate.scheduling.outcomes import Outcome
from tidegate_sidecar.endpoints import ENDPOINTS
from tidegate_sidecar.errors import ApiError

_CLIENTS_FAULT = frozenset({400, 404, 413, 422})
MAX_ERROR_BYTES = 1 << 20


def from_answer(status: int, retry_after: str | None, body: bytes) -> ApiError:
    """The error to end the request with."""
    if status in _CLIENTS_FAULT:
        error = _openai_error(body)
        outcome = Outcome.PROMPT_TOO_LONG if status == 413 else Outcome.MALFORMED
        code = error.get("code")
        return ApiError(
            outcome,
            str(error.get("message") or "The engine refused the request as malformed."),
            param=error.get("param") if isinstance(error.get("param"), str) else None,
            status=400 if status == 422 else status,
            code=code if isinstance(code, str) else None,
        )
    if status == 429:
        return ApiError(Outcome.ENGINE_REFUSED, retry_after=_usable(retry_after))
    if status == 503:
        return ApiError(Outcome.NO_ENGINE, retry_after=_usable(retry_after))
    return ApiError(Outcome.ENGINE_FAILED)


def other_task(path: str, task: Task) -> ApiError:
    """The 404 for an endpoint that no model of the pool's ``task`` serves."""
    served = ", ".join(each for each, one in ENDPOINTS.items() if one.task in (task, None))
    return ApiError(
        Outcome.MALFORMED,
        f"{path} is not served here: this pool's task is {task}. It serves {served}.",
        status=404,
        code="unknown_url",
    )


def _usable(retry_after: str | None) -> str | None:
    """The upstream's value, if it is one that a client can act on: whole seconds or a date."""
    value = (retry_after or "").strip()
    if value.isascii() and value.isdecimal() and int(value[:10]) >= 1:
        return value[:10]
    try:
        parsedate_to_datetime(value)
    except ValueError:
        return None
    return value


def _openai_error(body: bytes) -> dict[str, Any]:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(answer, dict):
        return {}
    error = answer.get("error", answer)
    if isinstance(error, dict):
        return error if "message" in error else {"message": _detail(error.get("detail"))}
    return {"message": error if isinstance(error, str) else None}


def _detail(detail: Any) -> str | None:
    """FastAPI's 422: a list of what is wrong where."""
    if isinstance(detail, list):
        parts = [
            f"{'.'.join(map(str, item['loc']))}: {item.get('msg', '')}"
            for item in detail
            if isinstance(item, dict) and isinstance(item.get("loc"), list)
        ]
        return "; ".join(parts) or None
    return detail if isinstance(detail, str) else None
