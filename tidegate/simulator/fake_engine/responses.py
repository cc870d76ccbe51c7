"""``POST /v1/responses``: vLLM 0.32's answer and events for a model without tools or reasoning.

Each token is an event of its own, written to the transport from the engine loop as chat's are; the
last event holds the whole answer with its usage. Nothing is stored: ``store`` is ignored, as vLLM
does where it is not told otherwise.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from tidegate.simulator.fake_engine.answers import CollectedAnswer
from tidegate.simulator.fake_engine.bodies import GenerateBody, parse_response
from tidegate.simulator.fake_engine.errors import ApiError, EngineStoppedError
from tidegate.simulator.fake_engine.sequence import Sequence
from tidegate.simulator.fake_engine.work import Work, base_id, event_stream, json_response

Json = dict[str, Any]
_UNUSED = (
    "max_tool_calls", "prompt", "reasoning", "top_logprobs", "kv_transfer_params",
    "ec_transfer_params", "input_messages", "output_messages",
)  # fmt: skip


class Responses:
    """Of one engine."""

    def __init__(self, work: Work) -> None:
        self._work = work

    async def create(self, request: web.Request) -> web.StreamResponse:
        given: Json = {}

        def parse(body: Mapping[str, Any]) -> GenerateBody:
            given.update(body)
            return parse_response(body)

        body = await self._work.body(request, parse)
        if given.get("background") or given.get("previous_response_id"):
            raise ApiError(404, "Response with id not found.", "previous_response_id")
        self._work.check_model(body.model)
        limit = self._work.output_limit(body.prompts[0].tokens, body.max_tokens)
        head = _Head(f"resp_{base_id(request)}", self._work.options.served_names[0], given, limit)
        if not body.stream:
            answer = CollectedAnswer()
            self._work.fill(answer, request, body, head.answer_id)
            await self._work.run(answer)
            return json_response(head.whole(answer.sequences[0]))
        response, transport, chunked = await event_stream(request)
        stream = _Stream(head, transport, chunked=chunked)
        stream.open()
        self._work.fill(stream, request, body, head.answer_id)
        try:
            await self._work.run(stream)
        except EngineStoppedError as error:
            await response.write(error.event())
        else:
            await response.write(stream.remainder())
        await response.write_eof()
        return response


class _Head:
    """What all events of one answer share."""

    def __init__(self, answer_id: str, model: str, given: Json, max_output_tokens: int) -> None:
        self.answer_id = answer_id
        self.item_id = f"msg_{answer_id[5:]}"
        self._model = model
        self._given = given
        self._max_output_tokens = max_output_tokens
        self._created = int(time.time())

    def response(self, status: str, output: list[Json], usage: Json | None) -> Json:
        given = self._given
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.answer_id,
            "created_at": self._created,
            "incomplete_details": incomplete,
            "instructions": given.get("instructions"),
            "metadata": given.get("metadata"),
            "model": self._model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": given.get("temperature") or 1.0,
            "tool_choice": given.get("tool_choice") or "none",
            "tools": given.get("tools") or [],
            "top_p": given.get("top_p") or 1.0,
            "background": False,
            "max_output_tokens": self._max_output_tokens,
            "previous_response_id": None,
            "service_tier": "auto",
            "status": status,
            "text": given.get("text"),
            "truncation": "disabled",
            "usage": usage,
            "user": given.get("user"),
            "presence_penalty": given.get("presence_penalty") or 0.0,
            "frequency_penalty": given.get("frequency_penalty") or 0.0,
            **dict.fromkeys(_UNUSED),
        }

    def message(self, text: str | None) -> Json:
        """The one item of the output; without a text it is in progress."""
        part: Json = {"type": "output_text", "text": text, "annotations": [], "logprobs": None}
        return {
            "id": self.item_id,
            "type": "message",
            "role": "assistant",
            "content": [] if text is None else [part],
            "status": "in_progress" if text is None else "completed",
            "phase": None,
        }

    def whole(self, sequence: Sequence) -> Json:
        """The answer of an ended sequence."""
        prompt, output = sequence.request.prompt_tokens, sequence.request.output_tokens
        usage = {
            "input_tokens": prompt,
            "input_tokens_details": {
                "cached_tokens": sequence.request.cached_tokens,
                "cache_write_tokens": 0,
                "input_tokens_per_turn": [],
                "cached_tokens_per_turn": [],
            },
            "output_tokens": output,
            "output_tokens_details": {
                "reasoning_tokens": 0,
                "tool_output_tokens": 0,
                "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": [],
            },
            "total_tokens": prompt + output,
        }
        status = "incomplete" if sequence.finish_reason == "length" else "completed"
        return self.response(status, [self.message(sequence.text(0, output))], usage)


class _Stream(CollectedAnswer):
    """Sends each token as an event."""

    def __init__(self, head: _Head, transport: asyncio.WriteTransport, *, chunked: bool) -> None:
        super().__init__()
        self._head = head
        self._transport = transport
        self._chunked = chunked
        self._pending: list[bytes] = []
        self._events = 0

    def open(self) -> None:
        """What comes before the engine has begun."""
        response = self._head.response("in_progress", [], None)
        self._event("response.created", response=response)
        self._event("response.in_progress", response=response)
        self.flush()

    def on_token(self, sequence: Sequence) -> None:
        end = sequence.request.output_tokens
        if sequence.delivered_tokens == 0:
            self._event("response.output_item.added", output_index=0, item=self._head.message(None))
            part: Json = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            self._part_event("response.content_part.added", part=part)
        delta = sequence.text(sequence.delivered_tokens, end)
        self._part_event("response.output_text.delta", delta=delta, logprobs=[])
        sequence.delivered_tokens = end

    def flush(self) -> None:
        if self._pending and not self._transport.is_closing():
            self._transport.write(b"".join(map(self._framed, self._pending)))
        self._pending.clear()

    def remainder(self) -> bytes:
        """The end, unframed."""
        answer = self._head.whole(self.sequences[0])
        (item,) = answer["output"]
        (part,) = item["content"]
        self._part_event("response.output_text.done", text=part["text"], logprobs=[])
        self._part_event("response.content_part.done", part=part)
        self._event("response.output_item.done", output_index=0, item=item)
        self._event("response.completed", response=answer)
        data = b"".join(self._pending)
        self._pending.clear()
        return data

    def _part_event(self, kind: str, **members: Any) -> None:
        place = {"item_id": self._head.item_id, "output_index": 0, "content_index": 0}
        self._event(kind, **place, **members)

    def _event(self, kind: str, **members: Any) -> None:
        data = orjson.dumps({"type": kind, "sequence_number": self._events, **members})
        self._events += 1
        self._pending.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))

    def _framed(self, payload: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(payload), payload) if self._chunked else payload
