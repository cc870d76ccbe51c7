"""What a client is told when its request is not served: OpenAI's error shape.

The mapping from outcome to status, ``type`` and ``code`` is the core's
(:data:`tidegate.scheduling.outcomes.HTTP_ERRORS`); this module gives it its bytes. A message names
what the client can change and never repeats a key, a prompt or an answer.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from tidegate.scheduling.outcomes import HTTP_ERRORS, Outcome
from tidegate.scheduling.request import Refusal

DROPPED_REASON_HEADER = "x-tidegate-dropped-reason"

DEFAULT_MESSAGES: dict[Outcome, str] = {
    Outcome.UNAUTHENTICATED: "Incorrect or missing API key; send 'Authorization: Bearer KEY'.",
    Outcome.FORBIDDEN: "This key's tenant is not served by this pool.",
    Outcome.PROMPT_TOO_LONG: "The prompt is longer than your tier allows.",
    Outcome.REQUEST_EXCEEDS_LIMIT: "The request is larger than a whole window of your rate limit.",
    Outcome.RATE_LIMITED: "Your rate limit is reached. Retry after the time given.",
    Outcome.THROTTLED: "Too much of yours waits for the latency you were promised. "
    "Retry after the time given.",
    Outcome.QUEUE_FULL: "Too many of your requests are waiting. Retry after the time given.",
    Outcome.ENGINE_REFUSED: "The engine is overloaded. Retry after the time given.",
    Outcome.HELD: "This tenant is on hold.",
    Outcome.DRAINING: "This replica is shutting down. Retry, and another one will answer.",
    Outcome.HANDED_BACK: "Another replica is free to serve this request. Retry.",
    Outcome.NO_ENGINE: "No engine is ready to serve. Retry after the time given.",
    Outcome.QUEUE_WAIT_EXCEEDED: "The request waited longer in the queue than its tier allows.",
    Outcome.DEADLINE_EXCEEDED: "The deadline of the request passed while it waited.",
    Outcome.ENGINE_FAILED: "The engine failed while it served this request.",
}


_LIMITED_MESSAGES: dict[Outcome, str] = {
    Outcome.RATE_LIMITED: "Your rate limit {!r} is reached. Retry after the time given.",
    Outcome.REQUEST_EXCEEDS_LIMIT: "The request is larger than a whole window of your rate limit "
    "{!r}; it can never pass. Ask for less output or send a shorter prompt.",
}


class ApiError(Exception):
    """Ends a request with an outcome other than COMPLETED; becomes exactly one HTTP answer."""

    def __init__(
        self,
        outcome: Outcome,
        message: str | None = None,
        *,
        param: str | None = None,
        status: int | None = None,
        code: str | None = None,
        retry_after: str | int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(outcome.value)
        self.outcome = outcome
        self.message = _encodable(
            message or DEFAULT_MESSAGES.get(outcome, "The request was refused.")
        )
        self.param = None if param is None else _encodable(param)
        self.status = status or HTTP_ERRORS[outcome].status
        self.code = code or HTTP_ERRORS[outcome].code
        self.retry_after = retry_after
        """Seconds (or an upstream's own value, passed on); only on outcomes that are retryable."""
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """The JSON body."""
        return orjson.dumps(
            {
                "error": {
                    "message": self.message,
                    "type": HTTP_ERRORS[self.outcome].type,
                    "param": self.param,
                    "code": self.code,
                }
            }
        )

    def event(self) -> bytes:
        """The same as one server-sent event, for a stream whose 200 was already sent."""
        return b"data: " + self.body() + b"\n\n"

    def typed_event(self) -> bytes:
        """Likewise, for a stream of the Responses API."""
        body = orjson.loads(self.body())
        event = {**body["error"], "type": "error", **body}
        return b"event: error\ndata: " + orjson.dumps(event) + b"\n\n"

    def response_headers(self) -> dict[str, str]:
        """Headers besides Content-Type: Retry-After, the drop reason and the error's own."""
        error = HTTP_ERRORS[self.outcome]
        headers = dict(self.headers)
        if error.retryable:
            headers["Retry-After"] = str(self.retry_after if self.retry_after is not None else 1)
        if error.dropped_reason:
            headers[DROPPED_REASON_HEADER] = error.dropped_reason
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers


def _encodable(text: str) -> str:
    """What a client's JSON escapes may hold and UTF-8 may not, lone surrogates, become escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def malformed(message: str, param: str | None = None) -> ApiError:
    """A 400 for a body or header that cannot be served as it is."""
    return ApiError(Outcome.MALFORMED, message, param=param)


def no_such_model(model: str) -> ApiError:
    """A 404 for a model that is not served, or not to this tenant: nobody is told which."""
    return ApiError(
        Outcome.MODEL_NOT_FOUND,
        f"The model {model[:128]!r} does not exist or you do not have access to it.",
        param="model",
    )


def not_admitted(refusal: Refusal) -> ApiError:
    """The answer to a request that prompt limit, throttle or a rate limit refused."""
    message = _LIMITED_MESSAGES.get(refusal.outcome)
    if message is not None and refusal.limit is not None:
        message = message.format(refusal.limit)
    else:
        message = None
    return ApiError(refusal.outcome, message, retry_after=refusal.retry_after_seconds)
