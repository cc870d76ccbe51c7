"""Reading a client's body within a bound of memory and time."""

from __future__ import annotations

import asyncio

from aiohttp import HttpVersion11, web
from aiohttp.hdrs import CONTENT_ENCODING, EXPECT
from aiohttp.web_request import BaseRequest

from tidegate.scheduling.outcomes import Outcome
from tidegate_sidecar.errors import ApiError, malformed

_ENCODINGS = ("", "identity", "gzip", "deflate")


async def read_body(request: BaseRequest, limit: int, seconds: float) -> bytes:
    """The inflated body, at most ``limit`` bytes; nothing beyond is held.

    The bound is checked on Content-Length before a byte is read (and before ``100 Continue``), and
    on what came out of chunks and of gzip while it is read.
    """
    headers = request.headers
    encoding = headers.get(CONTENT_ENCODING, "").strip().lower()
    if encoding not in _ENCODINGS:
        raise ApiError(
            Outcome.MALFORMED,
            "Content-Encoding must be gzip, deflate or absent.",
            status=415,
            code="unsupported_encoding",
        )
    length = request.content_length
    if length is not None and length > limit:
        raise _too_large(limit)
    if EXPECT in headers:
        if headers[EXPECT].lower() != "100-continue":
            raise ApiError(Outcome.MALFORMED, "Only 'Expect: 100-continue' is known.", status=417)
        if request.version >= HttpVersion11:  # an older client would take it for the answer
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    content = request.content
    if content.is_eof() and content.total_bytes <= limit:
        return content.read_nowait()  # it came with the head: the usual case of a small body
    try:
        async with asyncio.timeout(seconds):
            return await _read_parts(request, limit)
    except TimeoutError:
        _read_no_more(request)
        raise ApiError(Outcome.MALFORMED, "The body did not arrive in time.", status=408) from None


async def _read_parts(request: BaseRequest, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    try:
        while part := await request.content.readany():
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            parts.append(part)
    except (web.PayloadAccessError, web.RequestPayloadError):
        _read_no_more(request)
        raise malformed("The body could not be read: its encoding is broken.") from None
    return b"".join(parts)


def _read_no_more(request: BaseRequest) -> None:
    """Else aiohttp reads on: for ten seconds, or to its own and a logged surprise."""
    request.content.feed_eof()
    request.protocol.close()


def _too_large(limit: int) -> ApiError:
    return ApiError(
        Outcome.BODY_TOO_LARGE,
        f"The request body is larger than the limit of {limit} bytes. "
        "This is the limit of bytes, not of prompt tokens.",
    )
