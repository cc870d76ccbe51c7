"""Where a client's body ends, beyond what aiohttp's parser asks: nobody may read it another way.

The parser refuses what is ambiguous by itself: two lengths, a length beside chunks, folded or bare
lines, sizes that are no number. It takes two things that it should not: a ``Transfer-Encoding`` of
more than ``chunked``, of which it undoes the chunks alone, and one of an HTTP/1.0 client, which may
stand behind a proxy that went by the length. Source: RFC 9112, 6.1.

And it gives the last field of the trailer of a body in chunks to the *next* request of the
connection, which may be another client's where a proxy shares one. So a request in chunks is the
last of its connection (:class:`~tidegate_sidecar.tenants_port.TenantsPort`).
"""

from __future__ import annotations

from aiohttp import HttpVersion11
from aiohttp.hdrs import TRANSFER_ENCODING
from aiohttp.web_request import BaseRequest

from tidegate_sidecar.errors import malformed


def require_chunked(request: BaseRequest) -> None:
    """400 for a ``Transfer-Encoding`` by which nobody can be sure where the body ends."""
    codings = [coding.lower() for coding in request.headers.getall(TRANSFER_ENCODING)]
    if codings != ["chunked"] or request.version < HttpVersion11:
        raise malformed("Transfer-Encoding must be chunked, of an HTTP/1.1 client, or absent.")
