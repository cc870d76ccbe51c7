"""Headers by which a client orders its own requests, and what its body must be."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp.hdrs import CONTENT_TYPE
from aiohttp.web_request import BaseRequest
from multidict import istr

from tidegate.scheduling.outcomes import Outcome
from tidegate_sidecar.errors import ApiError, malformed

PRIORITY_HEADER = istr("x-tidegate-priority")
DEADLINE_HEADER = istr("x-tidegate-deadline-ms")
MAX_OWN_PRIORITY = 1_000
MAX_DEADLINE_MS = 86_400_000
_JSON = "application/json"


def own_priority(headers: Mapping[str, str]) -> int:
    """Among the tenant's own requests, higher first; 0: the header is absent."""
    return _integer(headers, PRIORITY_HEADER, -MAX_OWN_PRIORITY, MAX_OWN_PRIORITY) or 0


def own_deadline_ms(headers: Mapping[str, str]) -> int | None:
    """To the first token, from the arrival; None: the header is absent."""
    return _integer(headers, DEADLINE_HEADER, 1, MAX_DEADLINE_MS)


def require_json(request: BaseRequest) -> None:
    """415 for a body of any other type."""
    if request.headers.get(CONTENT_TYPE) == _JSON:
        return  # as nearly every client writes it: nothing to parse
    if request.content_type != _JSON:
        raise ApiError(
            Outcome.MALFORMED,
            "The content type must be application/json.",
            status=415,
            code="unsupported_content_type",
        )


def _integer(headers: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    try:
        number = int(value) if len(value) <= 12 else None
    except ValueError:
        number = None
    if number is None or not low <= number <= high:
        raise malformed(f"The header {name} must be an integer from {low} to {high}.", name)
    return number
