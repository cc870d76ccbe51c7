"""Requests whose end two readers might see in two places: none of them may be served.

Each row is a whole request but for what its name says. Source: RFC 9112, 2.2, 5.2, 6.1, 6.3, 7.1.
"""

from __future__ import annotations

import json

from support.sidecar import ALICE, KEYS, chat_body

BODY = json.dumps(chat_body()).encode()
SIZE = len(BODY)
LENGTH = b"Content-Length: %d" % SIZE
CLOSE = b"Connection: close"
CHUNKED = b"Transfer-Encoding: chunked"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY)


def head(*lines: bytes, version: bytes = b"1.1", end: bytes = b"\r\n", host: bytes = b"x") -> bytes:
    """The head of a chat request."""
    first = b"POST /v1/chat/completions HTTP/" + version
    key = b"Authorization: Bearer " + KEYS[ALICE].encode()
    own = (first, b"Host: " + host, key, b"Content-Type: application/json")
    return end.join([*own, *lines, b"", b""])


def in_chunks(chunks: bytes) -> bytes:
    return head(CHUNKED) + chunks


WELL = head(LENGTH) + BODY
"""A request in order."""

TRAILED = in_chunks(b"%x\r\n%b\r\n0\r\nAuthorization: none\r\n\r\n" % (SIZE, BODY))
"""In order too; what its trailer says is about nobody else."""

SERVED: dict[str, bytes] = {
    "length": head(CLOSE, LENGTH) + BODY,
    "chunks": head(CHUNKED) + CHUNKS,
    "chunks, in capitals": head(b"TRANSFER-ENCODING:\tCHUNKED") + CHUNKS,
    "chunks with an extension": in_chunks(b"%x;a=b\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY)),
    "a trailer": TRAILED,
    "HTTP/1.0": head(LENGTH, version=b"1.0") + BODY,
    "a line before it": b"\r\n" + head(CLOSE, LENGTH) + BODY,
}
"""So that what refuses the others is what their names say; each is the last of its connection."""

REFUSED: dict[str, bytes] = {
    "length and chunks": head(LENGTH, CHUNKED) + CHUNKS,
    "chunks and length": head(CHUNKED, LENGTH) + CHUNKS,
    "length 0 and chunks": head(b"Content-Length: 0", CHUNKED) + CHUNKS,
    "two lengths": head(LENGTH, b"Content-Length: 5") + BODY,
    "two lengths alike": head(LENGTH, LENGTH) + BODY,
    "a list of lengths": head(b"Content-Length: %d, %d" % (SIZE, SIZE)) + BODY,
    "a signed length": head(b"Content-Length: +%d" % SIZE) + BODY,
    "a negative length": head(b"Content-Length: -1") + BODY,
    "a hexadecimal length": head(b"Content-Length: 0x%x" % SIZE) + BODY,
    "no length": head(b"Content-Length:") + BODY,
    "a length in parts": head(b"Content-Length: 1 %d" % SIZE) + BODY,
    "a length beyond all numbers": head(b"Content-Length: " + b"9" * 25) + BODY,
    "a blank before the colon": head(b"Content-Length : %d" % SIZE) + BODY,
    "gzip, chunked": head(b"Transfer-Encoding: gzip, chunked") + CHUNKS,
    ", chunked": head(b"Transfer-Encoding: , chunked") + CHUNKS,
    "chunked, chunked": head(b"Transfer-Encoding: chunked, chunked") + CHUNKS,
    "chunked, identity": head(b"Transfer-Encoding: chunked, identity") + CHUNKS,
    "chunked with a parameter": head(b"Transfer-Encoding: chunked;a=b") + CHUNKS,
    "identity": head(b"Transfer-Encoding: identity") + CHUNKS,
    "xchunked": head(b"Transfer-Encoding: xchunked") + CHUNKS,
    "chunked, quoted": head(b'Transfer-Encoding: "chunked"') + CHUNKS,
    "chunked behind a vertical tab": head(b"Transfer-Encoding: \x0bchunked") + CHUNKS,
    "chunked with a letter like k": head("Transfer-Encoding: chun\u212aed".encode()) + CHUNKS,
    "no encoding": head(b"Transfer-Encoding:") + CHUNKS,
    "chunked twice": head(CHUNKED, CHUNKED) + CHUNKS,
    "gzip and then chunked": head(b"Transfer-Encoding: gzip", CHUNKED) + CHUNKS,
    "a blank before chunked's colon": head(b"Transfer-Encoding : chunked") + CHUNKS,
    "chunked, folded": head(b"Transfer-Encoding:", b" chunked") + CHUNKS,
    "chunked, folded into another": head(LENGTH, b"x-a: 1", b" Transfer-Encoding: chunked") + BODY,
    "HTTP/1.0 with chunks": head(CHUNKED, version=b"1.0") + CHUNKS,
    "HTTP/1.0 with chunks, kept alive": (
        head(CHUNKED, b"Connection: keep-alive", version=b"1.0") + CHUNKS
    ),
    "HTTP/1.0 with length and chunks": head(LENGTH, CHUNKED, version=b"1.0") + CHUNKS,
    "HTTP/0.9": head(LENGTH, version=b"0.9") + BODY,
    "HTTP/1.2": head(LENGTH, version=b"1.2") + BODY,
    "HTTP/2.0": head(LENGTH, version=b"2.0") + BODY,
    "a folded line": head(LENGTH, b"x-a: 1", b" 2") + BODY,
    "a line folded by a tab": head(LENGTH, b"x-a: 1", b"\t2") + BODY,
    "bare line feeds": head(LENGTH, end=b"\n") + BODY,
    "bare carriage returns": head(LENGTH, end=b"\r") + BODY,
    "one bare line feed": head(LENGTH, b"x-a: 1\nTransfer-Encoding: chunked") + BODY,
    "one bare carriage return": head(LENGTH, b"x-a: 1\rTransfer-Encoding: chunked") + BODY,
    "a zero byte in a value": head(LENGTH, b"x-a: \x00") + BODY,
    "a zero byte in a name": head(LENGTH, b"x\x00: a") + BODY,
    "a blank in a name": head(LENGTH, b"x a: 1") + BODY,
    "no name": head(LENGTH, b": 1") + BODY,
    "no colon": head(LENGTH, b"x-a") + BODY,
    "a blank before it": b" " + WELL,
    "two hosts": head(LENGTH, b"Host: y") + BODY,
    "a value too long": head(LENGTH, b"x-a: " + b"a" * 40_000) + BODY,
    "too many lines": head(LENGTH, *[b"x-%d: a" % number for number in range(130)]) + BODY,
    "a negative chunk": in_chunks(b"-1\r\n%b\r\n0\r\n\r\n" % BODY),
    "a signed chunk": in_chunks(b"+%x\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY)),
    "a chunk of 0x": in_chunks(b"0x%x\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY)),
    "a chunk with an underscore": in_chunks(b"0_%x\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY)),
    "a chunk beyond all numbers": in_chunks(b"%b\r\n%b\r\n0\r\n\r\n" % (b"f" * 17, BODY)),
    "a chunk without size": in_chunks(b"\r\n%b\r\n0\r\n\r\n" % BODY),
    "a blank before a chunk's size": in_chunks(b" %x\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY)),
    "a blank behind a chunk's size": in_chunks(b"%x \r\n%b\r\n0\r\n\r\n" % (SIZE, BODY)),
    "a bare line feed behind a chunk's size": in_chunks(b"%x\n%b\r\n0\r\n\r\n" % (SIZE, BODY)),
    "a bare line feed in an extension": in_chunks(b"%x;a\nb\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY)),
    "no line end behind a chunk": in_chunks(b"%x\r\n%b0\r\n\r\n" % (SIZE, BODY)),
    "a chunk longer than it says": in_chunks(b"%x\r\n%b\r\n0\r\n\r\n" % (SIZE - 3, BODY)),
    "a length in the trailer": in_chunks(
        b"%x\r\n%b\r\n0\r\nContent-Length: 5\r\n\r\n" % (SIZE, BODY)
    ),
    "chunks in the trailer": in_chunks(
        b"%x\r\n%b\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n" % (SIZE, BODY)
    ),
    "a second protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a TLS hello": bytes.fromhex("16030100750100007103") + b"\x00" * 30,
}
