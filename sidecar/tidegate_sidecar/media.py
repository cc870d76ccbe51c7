"""Images and audio in a prompt: how many tokens they are taken for, and from where they may come.

What a picture costs depends on the model, so a rule stands in for all of them, and the engine's
usage settles the bill:

* an image has one token for each started 28 x 28 pixels, 4 to 16,384 (the patches of Qwen2.5-VL and
  its default bounds); the size is read from the head of a PNG, JPEG, GIF or WebP. One whose size
  is not told has 576, the 24 x 24 grid of CLIP at 336 pixels;
* audio has 25 tokens a second (Whisper's encoder with frames pooled in pairs, as Qwen2-Audio). A
  WAV names its byte rate, anything else is taken for 128 kbit/s;
* a file is taken for text.

Bytes of base64 say nothing of tokens: a prompt of one picture is no prompt of a million characters.

A remote URL would be fetched by the engine, from inside the cluster: it is refused unless the pool
lists its host. What passes has no user, no backslash and no other character by which two parsers
could see two hosts.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Container
from typing import Any

from tidegate_sidecar.errors import malformed

UNKNOWN_IMAGE_TOKENS = 576
_PATCH_PIXELS = 28
_MIN_IMAGE_TOKENS, _MAX_IMAGE_TOKENS = 4, 16_384
AUDIO_TOKENS_PER_SECOND = 25
_COMPRESSED_BYTES_PER_SECOND = 16_000
_HEAD_BYTES = 96 * 1024
"""Enough for the size of a JPEG behind its EXIF data."""

_REMOTE = re.compile(r"https?://([A-Za-z0-9.-]+)(?::\d{1,5})?(?:[/?#][!-\[\]-~]*)?", re.ASCII)
_JPEG_SIZES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})


def image_tokens(url: Any, domains: Container[str], where: str) -> int:
    """Tokens of the image at a URL; 400 where it may not come from there."""
    if not isinstance(url, str):
        raise malformed("An image needs its URL, as a string.", where)
    if url[:5].lower() != "data:":
        _check_remote(url, domains, where)
        return UNKNOWN_IMAGE_TOKENS
    size = _image_size(_decoded_head(url.partition(",")[2]))
    if size is None:
        return UNKNOWN_IMAGE_TOKENS
    width, height = size
    patches = -(-width // _PATCH_PIXELS) * -(-height // _PATCH_PIXELS)
    return min(max(patches, _MIN_IMAGE_TOKENS), _MAX_IMAGE_TOKENS)


def audio_tokens(audio: Any, where: str) -> int:
    """Tokens of an ``input_audio`` part's object."""
    data = audio.get("data") if isinstance(audio, dict) else None
    if not isinstance(data, str):
        raise malformed("A part of type input_audio needs input_audio.data.", where)
    head = _decoded_head(data[:256])
    per_second = _COMPRESSED_BYTES_PER_SECOND
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE" and head[12:16] == b"fmt " and len(head) >= 32:
        per_second = int.from_bytes(head[28:32], "little") or per_second
    seconds = len(data) * 3 // 4 / per_second
    return max(1, round(seconds * AUDIO_TOKENS_PER_SECOND))


def file_text(file: Any, where: str) -> str:
    """The contents of a file part's object, which are taken for text."""
    members = file if isinstance(file, dict) else {}
    if members.get("file_id") is not None:
        raise malformed("file_id is not supported: nothing is stored here.", where)
    if members.get("file_url") is not None:
        raise malformed("Remote files are not fetched here; send file_data.", where)
    data = members.get("file_data")
    if not isinstance(data, str):
        raise malformed("A file needs its file_data, as a string.", where)
    return data


def _check_remote(url: str, domains: Container[str], where: str) -> None:
    match = _REMOTE.fullmatch(url)
    if match is None or match[1].lower() not in domains:
        raise malformed("Remote media is not fetched here; send a data: URL.", where)


def _decoded_head(text: str) -> bytes:
    head = text[: _HEAD_BYTES // 3 * 4]
    try:
        return base64.b64decode(head[: len(head) // 4 * 4])
    except (binascii.Error, ValueError):
        return b""


def _image_size(head: bytes) -> tuple[int, int] | None:
    """Width and height in pixels, as the image's head says."""
    if head[:8] == b"\x89PNG\r\n\x1a\n" and len(head) >= 24:
        return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    if head[:4] == b"GIF8" and len(head) >= 10:
        return int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP" and len(head) >= 30:
        return _webp_size(head)
    if head[:2] == b"\xff\xd8":
        return _jpeg_size(head)
    return None


def _webp_size(head: bytes) -> tuple[int, int] | None:
    kind = head[12:16]
    if kind == b"VP8X":
        return (
            int.from_bytes(head[24:27], "little") + 1,
            int.from_bytes(head[27:30], "little") + 1,
        )
    if kind == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = head[26:28], head[28:30]
        return int.from_bytes(width, "little") & 0x3FFF, int.from_bytes(height, "little") & 0x3FFF
    return None


def _jpeg_size(head: bytes) -> tuple[int, int] | None:
    """From the frame header (SOF), behind whatever segments come first."""
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        if head[at + 1] in _JPEG_SIZES:
            height, width = head[at + 5 : at + 7], head[at + 7 : at + 9]
            return int.from_bytes(width, "big"), int.from_bytes(height, "big")
        at += 2 + int.from_bytes(head[at + 2 : at + 4], "big")
    return None
