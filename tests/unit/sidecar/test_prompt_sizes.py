"""What a prompt is taken for before the engine has counted it: media, schemas, ratios by tenant."""

from __future__ import annotations

import base64
import json
import random
import struct
from typing import Any

import pytest
from tidegate_sidecar.bodies import parse_body
from tidegate_sidecar.endpoints import CHAT, RERANKS, RESPONSES, SCORES, Endpoint
from tidegate_sidecar.errors import ApiError
from tidegate_sidecar.estimate import Estimator, PromptSize
from tidegate_sidecar.media import image_tokens


def data_url(head: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64," + base64.b64encode(head + bytes(300)).decode()


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height)


def jpeg(width: int, height: int) -> bytes:
    exif = b"\xff\xe1" + struct.pack(">H", 20_000) + bytes(19_998)
    return b"\xff\xd8" + exif + b"\xff\xc0\0\x11\x08" + struct.pack(">HH", height, width)


IMAGES = [
    (png(280, 560), 200),
    (png(1, 1), 4),
    (png(100_000, 100_000), 16_384),
    (b"GIF89a" + struct.pack("<HH", 281, 28), 11),
    (jpeg(1024, 768), 37 * 28),
    (b"RIFF\0\0\0\0WEBPVP8X" + bytes(8) + b"\x17\x01\0\x2f\x02\0", 10 * 20),
    (b"RIFF\0\0\0\0WEBPVP8L" + bytes(4) + b"\x2f" + struct.pack("<I", 279 | 559 << 14), 10 * 20),
    (b"RIFF\0\0\0\0WEBPVP8 " + bytes(10) + struct.pack("<HH", 280, 560), 10 * 20),
    (b"\xff\xd8\xff", 576),
    (b"no image", 576),
]


@pytest.mark.parametrize(("head", "tokens"), IMAGES)
def test_an_image_costs_by_its_size(head: bytes, tokens: int) -> None:
    assert image_tokens(data_url(head), (), "x") == tokens


@pytest.mark.parametrize(
    "url", ["data:", "data:image/png;base64,????", "data:image/png,%20", "DATA:x"]
)
def test_an_image_that_tells_nothing_has_the_fixed_figure(url: str) -> None:
    assert image_tokens(url, (), "x") == 576


@pytest.mark.parametrize(
    "url",
    [
        "https://images.example.com/a.png",
        "HTTPS://images.example.com/a.png",
        "http://evil.com/a.png",
        "https://images.example.com@evil.com/",
        "https://images.example.com\\@evil.com/",
        "https://images.example.com.evil.com/",
        "https://evil.com/#images.example.com",
        "https://images.example.com:99999999/",
        "https://images.example.com\n.evil.com/",
        "https://[::1]/",
        "ftp://images.example.com/a.png",
        "//images.example.com/a.png",
    ],
)
def test_remote_media_passes_only_from_a_host_that_the_pool_lists(url: str) -> None:
    listed = frozenset({"images.example.com"})
    if url == "https://images.example.com/a.png":
        assert image_tokens(url, listed, "x") == 576
        assert image_tokens(url.replace("com/", "com:8443/"), listed, "x") == 576
    else:
        with pytest.raises(ApiError):
            image_tokens(url, listed, "x")
    with pytest.raises(ApiError):
        image_tokens(url, (), "x")


def wav(seconds: float) -> str:
    rate = 32_000
    head = b"RIFF\0\0\0\0WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16_000, rate, 2, 16)
    return base64.b64encode(head + bytes(int(seconds * rate))).decode()


CASES: list[tuple[Endpoint, dict[str, Any], int]] = [
    (CHAT, {"messages": [{"role": "user", "content": "a" * 400}]}, 104),
    (CHAT, {"messages": [{"role": "user", "content": "é" * 200}]}, 104),
    (CHAT, {"messages": [{"role": "user", "content": None}], "tools": [{"a": "x" * 390}]}, 104),
    (
        CHAT,
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "a" * 40},
                        {"type": "image_url", "image_url": {"url": data_url(png(280, 280))}},
                        {"type": "input_audio", "input_audio": {"data": wav(2.0), "format": "wav"}},
                    ],
                }
            ]
        },
        4 + 10 + 100 + 50,
    ),
    (RESPONSES, {"input": "a" * 400, "instructions": "b" * 40}, 4 + 100 + 4 + 10),
    (
        RESPONSES,
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "a" * 40}]},
                {"type": "message", "role": "assistant", "content": "b" * 40},
                {"type": "function_call", "name": "f", "call_id": "c", "arguments": "c" * 40},
                {"type": "function_call_output", "call_id": "c", "output": "d" * 40},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "e" * 40}]},
                {
                    "role": "user",
                    "content": [{"type": "input_image", "image_url": data_url(png(280, 280))}],
                },
            ]
        },
        6 * 4 + 5 * 10 + 100,
    ),
    (RERANKS[0], {"query": "q" * 40, "documents": ["a" * 40, "b" * 80]}, 50),
    (SCORES[0], {"text_1": ["q" * 40, "r" * 40], "text_2": ["a" * 40, "b" * 80]}, 50),
    (
        SCORES[0],
        {"queries": "q" * 40, "items": {"content": [{"type": "text", "text": "a" * 40}]}},
        20,
    ),
]


@pytest.mark.parametrize(("endpoint", "members", "tokens"), CASES)
def test_the_size_of_a_body(endpoint: Endpoint, members: dict[str, Any], tokens: int) -> None:
    body = parse_body(endpoint, json.dumps({"model": "m", **members}).encode())
    assert Estimator().tokens(body.size) == tokens


def test_each_tenant_has_a_ratio_of_its_own_that_begins_at_that_of_all() -> None:
    estimator = Estimator()
    english, chinese = estimator.of("english"), estimator.of("chinese")
    for _ in range(200):
        english.observe(PromptSize(4_400), 1_000)
        chinese.observe(PromptSize(2_200), 1_000)
    assert english.tokens(PromptSize(4_400)) == pytest.approx(1_000, rel=0.02)
    assert chinese.tokens(PromptSize(2_200)) == pytest.approx(1_000, rel=0.02)
    assert 2.2 < estimator.of("new").bytes_per_token < 4.4


def test_a_count_is_asked_for_only_within_the_measured_error() -> None:
    estimator = Estimator()
    size = PromptSize(4_000)
    assert estimator.is_between(size, [600.0])
    assert not estimator.is_between(size, [300.0, 3_000.0])
    random_ = random.Random(1)
    for _ in range(300):
        estimator.observe(PromptSize(4_000), round(1_000 * random_.uniform(0.98, 1.02)))
    assert estimator.is_between(size, [1_010.0])
    assert not estimator.is_between(size, [600.0, 1_200.0])
    assert not estimator.is_between(PromptSize(fixed_tokens=1_000), [1_000.0])
    assert not estimator.is_between(PromptSize(4_000, text_tokens=1_000), [1_000.0])
