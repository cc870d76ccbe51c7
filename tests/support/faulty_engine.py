"""A faulty upstream that passes for an engine: sound at its health, faulty where a test scripts it.

``engine.script`` (a behaviour of ``support.faulty_upstream``) answers every POST; unset, it
answers well. ``/health``, ``/v1/models`` and ``/metrics`` answer as the attributes say
and are not recorded.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from support.faulty_upstream import (
    Behaviour,
    Connection,
    FaultyUpstream,
    ReceivedRequest,
    answer,
    event_stream,
)

MODEL = "test-model"
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
DONE = b"data: [DONE]\n\n"


def event(members: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(members).encode() + b"\n\n"


def chat_chunk(text: str | None = None, **choice: Any) -> bytes:
    """An event of a chat stream with one choice."""
    delta = {} if text is None else {"content": text}
    return _chunk([{"index": 0, "delta": delta, "finish_reason": None, **choice}])


def usage_event(usage: dict[str, int] = USAGE) -> bytes:
    """The event that an engine sends last, where asked to."""
    return _chunk([], usage=usage)


def _chunk(choices: list[dict[str, Any]], **members: Any) -> bytes:
    envelope = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    return event({**envelope, "choices": choices, **members})


def typed_event(kind: str, **members: Any) -> bytes:
    """An event of a stream of the Responses API."""
    return b"event: " + kind.encode() + b"\n" + event({**members, "type": kind})


GOOD_STREAM = (chat_chunk("Hel"), chat_chunk("lo!"), chat_chunk(finish_reason="stop"))
"""What a client that did not ask for usage sees of :func:`answer_well`, but ``[DONE]``."""


def chat_answer(text: str = "Hello!") -> dict[str, Any]:
    """A whole chat answer."""
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": USAGE,
    }


def answer_well(request: ReceivedRequest) -> Behaviour:
    """What a sound engine does: a stream where asked for one, else a whole answer."""
    if request.path == "/v1/embeddings":
        vectors = [{"object": "embedding", "index": 0, "embedding": [0.5, -0.5]}]
        usage = {"prompt_tokens": 7, "total_tokens": 7}
        return answer(200, {"object": "list", "data": vectors, "model": MODEL, "usage": usage})
    if request.json().get("stream"):
        return event_stream([*GOOD_STREAM, usage_event(), DONE])
    return answer(200, chat_answer())


class FaultyEngine(FaultyUpstream):
    """``async with FaultyEngine() as engine``."""

    def __init__(self, *, uds: str | None = None) -> None:
        super().__init__(answer(500, {}), uds=uds)
        self.script: Behaviour | None = None
        self.healthy = True
        self.max_model_len: int | None = 131_072
        self.metrics: str | None = None
        self._port = 0
        self.busy = 0
        """POSTs that are being answered."""

    async def stop_listening(self) -> None:
        """As a dead process: connections break, none can be made."""
        assert self._server is not None
        self._port = self._server.sockets[0].getsockname()[1]
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def listen_again(self) -> None:
        """On the port it had."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.open_connections += 1
        connection = Connection(reader, writer)
        try:
            while (request := await connection.request()) is not None:
                await self._answer(request, connection)
                if writer.is_closing():
                    break
        except (asyncio.CancelledError, ConnectionError):
            pass  # the test is over, or the client left
        finally:
            self.open_connections -= 1
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, request: ReceivedRequest, connection: Connection) -> None:
        if request.method != "POST":
            await self._tell(request.path)(connection)
            return
        self.requests.append(request)
        self.busy += 1
        try:
            await (self.script or answer_well(request))(connection)
        finally:
            self.busy -= 1

    def _tell(self, path: str) -> Behaviour:
        if path == "/health":
            return answer(200 if self.healthy else 503, b"")
        if path == "/metrics" and self.metrics is not None:
            return answer(200, self.metrics.encode())
        if path == "/v1/models":
            card = {"id": MODEL, "object": "model", "max_model_len": self.max_model_len}
            other = {"id": "another-model", "object": "model", "max_model_len": 16}
            return answer(200, {"object": "list", "data": [card, other]})
        return answer(404, {})
