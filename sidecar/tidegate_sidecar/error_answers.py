"""The whole answers that are no answer of an engine: errors, and methods that a route lacks."""

from __future__ import annotations

from tidegate.scheduling.outcomes import Outcome
from tidegate_sidecar.answers import WholeAnswer, json_answer
from tidegate_sidecar.errors import ApiError

_ANOTHER_POD_MAY = frozenset(
    {
        Outcome.THROTTLED,
        Outcome.QUEUE_FULL,
        Outcome.QUEUE_WAIT_EXCEEDED,
        Outcome.ENGINE_REFUSED,
    }
)
"""Too much waits here. A Service chooses a pod for each connection and not for each request: a
client that kept this one would come back here, and never to the pods that were added for it."""


def error_answer(error: ApiError, request_id: str, *, close: bool = False) -> WholeAnswer:
    """The HTTP answer of an error; ``close`` the connection after it."""
    return json_answer(
        error.body(),
        request_id,
        error.status,
        error.response_headers(),
        # what is left of a body that was refused is not read to its end
        close=close or error.status in (408, 413) or error.outcome in _ANOTHER_POD_MAY,
    )


def other_method(method: str, allowed: str, request_id: str) -> WholeAnswer:
    """The answer to OPTIONS; a 405 for any other method that the route lacks."""
    if method == "OPTIONS":
        return WholeAnswer(b"", {"Allow": allowed, "x-request-id": request_id}, 204)
    raise ApiError(
        Outcome.MALFORMED,
        f"The method {method[:16]} is not allowed here.",
        status=405,
        code="method_not_allowed",
        headers={"Allow": allowed},
    )
