"""Errors in vLLM's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class ApiError(Exception):
    """A refusal with its HTTP status; ``param`` names the offending field."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param

    def response(self) -> web.Response:
        """The HTTP answer."""
        return error_response(self.status, self.message, self.param)


def error_body(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """The JSON of an error, as a whole answer or as the last event of a stream."""
    kind = _TYPES.get(status, "InternalServerError")
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def error_response(status: int, message: str, param: str | None = None) -> web.Response:
    """An answer in vLLM's error shape."""
    return web.Response(
        body=orjson.dumps(error_body(status, message, param)),
        status=status,
        content_type="application/json",
    )


class EngineStoppedError(ApiError):
    """The engine ended with this request in it: vLLM's ``EngineDeadError``."""

    def __init__(self) -> None:
        super().__init__(
            500, "EngineCore encountered an issue. See stack trace (above) for the root cause."
        )

    def event(self) -> bytes:
        """What an open stream says then, before its ``[DONE]``."""
        return b"data: " + orjson.dumps(error_body(self.status, self.message)) + b"\n\n"
