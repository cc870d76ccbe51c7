"""Errors in vLLM's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import orjson
from aiohttp import web

_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    413: "RequestEntityTooLargeError",
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


def error_response(status: int, message: str, param: str | None = None) -> web.Response:
    """An answer in vLLM's error shape."""
    body = {
        "error": {
            "message": message,
            "type": _TYPES.get(status, "InternalServerError"),
            "param": param,
            "code": status,
        }
    }
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")
