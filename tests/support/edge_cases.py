"""What clients send to a sidecar or a router, in tables: O8, O10, O11, O13, R1, R15."""

from __future__ import annotations

import json
from typing import Any

from support.sidecar import ALICE, KEYS, chat_body

KEY = KEYS[ALICE]

KEYS_SHOWN: list[tuple[list[str], int]] = [
    ([f"Authorization: Bearer {KEY}"], 200),
    ([f"authorization: bEaReR  {KEY}"], 200),
    ([f"AUTHORIZATION: BEARER {KEY}"], 200),
    ([f"Authorization: Bearer {KEY} "], 200),  # HTTP strips it before anybody sees it
    ([f"Authorization: Basic {KEY}"], 401),
    ([f"Authorization: {KEY}"], 401),
    ([f"Authorization: Bearer {KEY}x"], 401),
    ([f"Authorization: Bearer {KEY} x"], 401),
    (["Authorization: Bearer"], 401),
    (["Authorization: Bearer \xff\xfe"], 401),
    ([f"Authorization: Bearer {KEY}", f"Authorization: Bearer {KEY}"], 401),
    ([f"Authorization: Bearer {KEY}, Bearer {KEY}"], 401),
    ([f"X-Api-Key: {KEY}"], 401),
    ([], 401),
]
"""R1: header lines, and the status of the answer."""

NO_REQUESTS: list[tuple[bytes, tuple[str, ...], dict[str, Any], int, str | None]] = [
    (b'{"model": "test-model", "messages": [', (), {}, 400, None),
    (b"[]", (), {}, 400, None),
    (b'"x"', (), {}, 400, None),
    (b'{"model": NaN}', (), {}, 400, None),
    (b'{"model": "a", "model": "b"}', (), {}, 400, "model"),
    ('{"model": "a"}'.encode("utf-16"), (), {}, 400, None),
    (b"", (), {}, 400, None),
    (b"{}", (), {}, 400, "model"),
    (b"{}", (), {"content_type": "text/plain"}, 415, None),
    (b"{}", (), {"content_type": ""}, 415, None),
    (b"{}", ("Content-Encoding: br",), {}, 400, None),
    (b"{}", ("Content-Encoding: x-own",), {}, 415, None),
    (b"not gzip", ("Content-Encoding: gzip",), {}, 400, None),
    (b"not chunked", ("Transfer-Encoding: chunked",), {}, 400, None),
    (rb'{"\ud800": 1}', (), {}, 400, "\\ud800"),
    (rb'{"a": {"\ud800": 1, "\ud800": 2}}', (), {}, 400, "\\ud800"),
    (b"", (), {"method": "GET"}, 405, None),
    (b"", (), {"method": "HEAD"}, 405, None),
    (b"", (), {"method": "DELETE", "path": "/v1/models"}, 405, None),
    (b"{}", (), {"path": "/v1/chat/completions/"}, 404, None),
    (b"{}", (), {"path": "//v1/chat/completions"}, 404, None),
    (b"{}", (), {"path": "/v1/other"}, 404, None),
    (b"{}", (), {"path": "/metrics"}, 404, None),
]
"""R15: body, header lines, members of the head; status and ``param`` of the answer."""

BOUNDS: list[Any] = [None, 0, -1, "5", 1e9, True, 10**9, 5]
"""O8: of ``max_tokens`` and ``max_completion_tokens``; null and 5 are valid."""

PROMPTS: list[Any] = ["abc", ["a", "b"], [1, 2, 3], [[1, 2], [3, 4]]]
NO_PROMPTS: list[Any] = [[], [[]], ["a", 1], [1.5], None]
"""O10: shapes of ``prompt``, and what is none."""

PRIORITY_HEADERS = {
    "x-priority": "-1000",
    "x-request-priority": "-1000",
    "x-vllm-priority": "-1000",
    "X-Session-ID": "s",
    "x-request-id": "mine",
    "traceparent": "00-0-0-0",
}
"""O13: no engine gets them."""


def image_body(size: int) -> bytes:
    """O11: a chat with an image of so many bytes."""
    url = "data:image/png;base64," + "A" * size
    part = {"type": "image_url", "image_url": {"url": url}}
    return json.dumps(chat_body(messages=[{"role": "user", "content": [part]}])).encode()
