"""The kubelet's HTTPS port, which the API server asks on behalf of `kubectl logs`.

    GET /containerLogs/{namespace}/{pod}/{container}?follow&previous&tailLines&limitBytes

The certificate is made at the start and verified by no one, as is usual for kubelets. No time is
kept per line: `timestamps`, `sinceSeconds` and `sinceTime` are refused, not ignored.
"""

import asyncio
import os
import ssl
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tidegate.local_cluster.kubelet.runtime import Attempt

_POLL_SECONDS = 0.2
_BLOCK_BYTES = 65536
_REFUSED = ("timestamps", "sinceSeconds", "sinceTime")

FindFolder = Callable[[str, str], Path | None]
"""(namespace, pod) -> the pod's folder."""


def application(find_folder: FindFolder) -> web.Application:
    """The HTTP application; `find_folder` finds the pods of this node."""

    async def logs(request: web.Request) -> web.StreamResponse:
        names = request.match_info
        folder = find_folder(names["namespace"], names["pod"])
        if folder is None:
            return web.Response(status=404, text=f"pod {names['pod']} is not on this node\n")
        return await _answer(request, folder / "containers" / names["container"])

    async def unsupported(request: web.Request) -> web.Response:
        return web.Response(status=501, text="the process kubelet offers logs only\n")

    app = web.Application()
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", logs)
    app.router.add_get("/healthz", _healthz)
    app.router.add_route("*", "/{anything:.*}", unsupported)
    return app


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok")


async def _answer(request: web.Request, container: Path) -> web.StreamResponse:
    query = request.query
    for name in _REFUSED:
        if query.get(name, "false") not in ("false", ""):
            return web.Response(status=400, text=f"{name}: this kubelet keeps no time per line\n")
    attempt = Attempt.last(container)
    if attempt is not None and query.get("previous") == "true":
        earlier = attempt.folder.with_name(str(attempt.number - 1))
        attempt = Attempt(earlier) if earlier.exists() else None
    if attempt is None:
        return web.Response(status=400, text="the container has no log (yet)\n")
    response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    limit = int(query["limitBytes"]) if "limitBytes" in query else None
    tail_lines = int(query["tailLines"]) if "tailLines" in query else None
    await _copy(response, attempt, query.get("follow") == "true", tail_lines, limit)
    await response.write_eof()
    return response


async def _copy(
    response: web.StreamResponse,
    attempt: Attempt,
    follow: bool,
    tail_lines: int | None,
    limit_bytes: int | None,
) -> None:
    left = limit_bytes
    with attempt.log.open("rb") as file:
        if tail_lines is not None:
            file.seek(_tail_offset(attempt.log, tail_lines))
        while left is None or left > 0:
            # Asked before reading: what a container wrote before it ended is always copied.
            over = not follow or not attempt.running()
            while block := file.read(_BLOCK_BYTES if left is None else min(left, _BLOCK_BYTES)):
                await response.write(block)
                left = None if left is None else left - len(block)
            if over:
                return
            await asyncio.sleep(_POLL_SECONDS)


def _tail_offset(log: Path, lines: int) -> int:
    """Where the last `lines` lines begin; reads the file backwards in blocks."""
    with log.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        if lines <= 0:
            return position
        seen = 0
        first = True
        while position > 0:
            start = max(0, position - _BLOCK_BYTES)
            file.seek(start)
            block = file.read(position - start)
            if first:
                # The newline that ends the last line begins no further one.
                block = block[:-1] + b" " if block.endswith(b"\n") else block
                first = False
            at = len(block)
            while (at := block.rfind(b"\n", 0, at)) >= 0:
                seen += 1
                if seen == lines:
                    return start + at + 1
            position = start
    return 0


def server_context(address: str) -> ssl.SSLContext:
    """A TLS context with a fresh self-signed certificate for `address`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"kubelet@{address}")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=3650))
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # The ssl module loads certificates from files only.
    with tempfile.NamedTemporaryFile() as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name)
    return context
