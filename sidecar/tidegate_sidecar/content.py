"""Content-Encoding of an engine's answers.

The engine is asked for none, so that what is read is what is sent on. One that compresses all the
same is inflated here, and the client gets the plain bytes with headers that say so; an encoding
that is not known passes through with its header, unread.
"""

from __future__ import annotations

import zlib

_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


class Inflater:
    """Inflates a body piece by piece; ``identity`` costs nothing."""

    __slots__ = ("_object", "opaque_encoding")

    def __init__(self, encoding: str | None) -> None:
        if encoding is None:
            self._object = self.opaque_encoding = None
            return
        name = encoding.strip().lower() or "identity"
        bits = _WINDOW_BITS.get(name)
        self._object = zlib.decompressobj(bits) if bits else None
        self.opaque_encoding = None if bits or name == "identity" else name
        """An encoding that passes through as it is."""

    @property
    def plain(self) -> bool:
        """Bytes are passed unchanged."""
        return self._object is None

    def feed(self, data: bytes) -> bytes:
        """The plain bytes; zlib.error where they are not what the header said."""
        return data if self._object is None else self._object.decompress(data)
