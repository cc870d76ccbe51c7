"""A pass-through proxy in aiohttp that does nothing else: what the library alone costs.

Usage: ``python benchmarks/bare_proxy.py --upstream URL --port PORT [--core N]``.
"""

from __future__ import annotations

import argparse
import os

import aiohttp
import uvloop
from aiohttp import web

_UPSTREAM = web.AppKey("upstream", aiohttp.ClientSession)
_HOP_BY_HOP = {"content-length", "transfer-encoding", "connection", "content-encoding"}


async def forward(request: web.Request) -> web.StreamResponse:
    """Reads the body, asks the upstream, and writes what comes as it comes."""
    body = await request.read()
    async with request.app[_UPSTREAM].request(
        request.method,
        request.rel_url,
        data=body,
        headers={"Content-Type": request.content_type},
    ) as upstream:
        headers = {
            name: value
            for name, value in upstream.headers.items()
            if name.lower() not in _HOP_BY_HOP
        }
        if upstream.content_length is not None:
            return web.Response(body=await upstream.read(), status=upstream.status, headers=headers)
        response = web.StreamResponse(status=upstream.status, headers=headers)
        await response.prepare(request)
        async for chunk in upstream.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
        return response


def application(upstream: str) -> web.Application:
    """The proxy of one upstream."""
    app = web.Application()

    async def session(app: web.Application):  # type: ignore[no-untyped-def]
        async with aiohttp.ClientSession(
            upstream,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        ) as app[_UPSTREAM]:
            yield

    app.cleanup_ctx.append(session)
    app.router.add_route("*", "/{path:.*}", forward)
    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--core", type=int)
    arguments = parser.parse_args()
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})
    web.run_app(
        application(arguments.upstream),
        host="127.0.0.1",
        port=arguments.port,
        access_log=None,
        loop=uvloop.new_event_loop(),
    )


if __name__ == "__main__":
    main()
