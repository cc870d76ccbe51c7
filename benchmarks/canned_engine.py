"""An OpenAI-shaped server of canned answers, as cheap as Python can make one: a proxy's upstream.

Answers are made once per shape and then only written. One protocol object a connection; requests
are told apart by their head and Content-Length. An event of a stream is a write of its own in a
pass of the event loop of its own, as an engine sends one a step, but without the wait between two
steps: what is measured is the proxy. ``GET /pace/MICROSECONDS`` sets a wait between two, for all
connections (0: none again). Not a model of an engine: see the fake engine for that.

    python benchmarks/canned_engine.py --port PORT [--core N]
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
from typing import Any

import orjson
import uvloop

MODEL = "bench-model"
_METRICS = f"""\
vllm:num_requests_running{{engine="0",model_name="{MODEL}"}} 0.0
vllm:num_requests_waiting{{engine="0",model_name="{MODEL}"}} 0.0
vllm:kv_cache_usage_perc{{engine="0",model_name="{MODEL}"}} 0.0
vllm:cache_config_info{{engine="0",block_size="16",num_gpu_blocks="65536"}} 1.0
""".encode()
_MODELS = orjson.dumps(
    {
        "object": "list",
        "data": [{"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": 32768}],
    }
)
_PROMPT_TOKENS = 12


def _usage(tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": _PROMPT_TOKENS,
        "completion_tokens": tokens,
        "total_tokens": _PROMPT_TOKENS + tokens,
    }


def _response(body: bytes, content_type: str = "application/json", status: str = "200 OK") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@functools.lru_cache
def whole_answer(tokens: int) -> bytes:
    """A chat completion of so many tokens, with its head."""
    message = {"role": "assistant", "content": " word" * tokens}
    return _response(
        orjson.dumps(
            {
                "id": "chatcmpl-canned",
                "object": "chat.completion",
                "created": 1_700_000_000,
                "model": MODEL,
                "choices": [
                    {"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}
                ],
                "usage": _usage(tokens),
            }
        )
    )


@functools.lru_cache
def streamed_answer(tokens: int, usage: bool, usage_in_each: bool) -> tuple[bytes, ...]:
    """Head and events, each a chunk; the first event has only the role, as vLLM's has."""
    events: list[dict[str, Any]] = []
    for token in range(tokens + 1):
        delta = {"content": " word"} if token else {"role": "assistant", "content": ""}
        reason = "length" if token == tokens else None
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        events.append({"choices": [choice]} | ({"usage": _usage(token)} if usage_in_each else {}))
    if usage:
        events.append({"choices": [], "usage": _usage(tokens)})
    envelope = {
        "id": "chatcmpl-canned",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": MODEL,
    }
    texts = [orjson.dumps(envelope | event) for event in events]
    chunks = [b"data: %s\n\n" % text for text in [*texts, b"[DONE]"]]
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    framed = [b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks]
    return (head + framed[0], *framed[1:-1], framed[-1] + b"0\r\n\r\n")


class CannedEngine(asyncio.Protocol):
    """One connection."""

    pace_seconds = 0.0
    """Between two events of a stream."""

    def __init__(self) -> None:
        self._due = 0.0
        self._loop = asyncio.get_running_loop()
        self._held = b""
        self._chunks: tuple[bytes, ...] = ()
        self._next = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._held = self._held + data if self._held else data
        if not self._chunks:
            self._answer_next()

    def _answer_next(self) -> None:
        head_end = self._held.find(b"\r\n\r\n")
        if head_end < 0 or self._transport is None:
            return
        head = self._held[:head_end].lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].partition(b"\r\n")[0]) if at >= 0 else 0
        end = head_end + 4 + length
        if len(self._held) < end:
            return
        body, self._held = self._held[head_end + 4 : end], self._held[end:]
        path = head.split(b" ", 2)[1]
        if path.endswith(b"/chat/completions"):
            self._complete(orjson.loads(body))
        elif path == b"/metrics":
            self._transport.write(_response(_METRICS, "text/plain; version=0.0.4"))
        elif path == b"/v1/models":
            self._transport.write(_response(_MODELS))
        elif path == b"/load":  # a pod's word to its router
            self._transport.write(_response(b'{"ready":true,"queued":0}'))
        elif path.startswith(b"/pace/"):
            CannedEngine.pace_seconds = int(path[6:]) / 1e6
            self._transport.write(_response(b"{}"))
        elif path in (b"/health", b"/ping", b"/version", b"/get_server_info", b"/get_model_info"):
            self._transport.write(_response(b"{}"))
        else:
            self._transport.write(_response(b"{}", status="404 Not Found"))
        if self._held and not self._chunks:
            self._answer_next()

    def _complete(self, body: dict[str, Any]) -> None:
        assert self._transport is not None
        tokens = body.get("max_tokens") or body.get("max_completion_tokens") or 16
        if not body.get("stream"):
            self._transport.write(whole_answer(tokens))
            return
        options = body.get("stream_options") or {}
        self._chunks = streamed_answer(
            tokens,
            bool(options.get("include_usage")),
            bool(options.get("continuous_usage_stats")),
        )
        self._next = 0
        self._due = self._loop.time()
        self._write_one()

    def _write_one(self) -> None:
        if self._transport is None:
            return
        self._transport.write(self._chunks[self._next])
        self._next += 1
        if self._next < len(self._chunks):
            if self.pace_seconds:
                self._due += self.pace_seconds
                self._loop.call_at(self._due, self._write_one)
            else:
                self._loop.call_soon(self._write_one)
        else:
            self._chunks = ()
            self._answer_next()


async def serve(port: int) -> None:
    """Until killed."""
    server = await asyncio.get_running_loop().create_server(CannedEngine, "127.0.0.1", port)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--core", type=int)
    arguments = parser.parse_args()
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})
    uvloop.run(serve(arguments.port))


if __name__ == "__main__":
    main()
