"""The HTTP endpoints: from a checked body to sequences, and from their answer to a response."""

from __future__ import annotations

import asyncio
import base64
import struct
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import orjson
from aiohttp import web

from tidegate.simulator.engine_model import EngineRequest
from tidegate.simulator.fake_engine.answers import CollectedAnswer, StreamedAnswer
from tidegate.simulator.fake_engine.bodies import (
    EmbeddingBody,
    GenerateBody,
    parse_chat,
    parse_completion,
    parse_embedding,
)
from tidegate.simulator.fake_engine.errors import ApiError, EngineStoppedError
from tidegate.simulator.fake_engine.loop import EngineLoop
from tidegate.simulator.fake_engine.metrics import EngineMetrics
from tidegate.simulator.fake_engine.options import Options
from tidegate.simulator.fake_engine.sequence import Sequence
from tidegate.simulator.fake_engine.text import Prompt, embedding, generated_text, mix
from tidegate.simulator.fake_engine.wire import DONE, AnswerHead, usage

VLLM_VERSION = "0.32.0"
Body = TypeVar("Body")


class Handlers:
    """All endpoints of one engine. ``draining`` True: new work is refused, as in vLLM with 500."""

    def __init__(self, options: Options, loop: EngineLoop, metrics: EngineMetrics) -> None:
        self._options = options
        self._loop = loop
        self._metrics = metrics
        self._started = int(time.time())
        self._sequences = 0
        self.draining = False
        self.open_answers = 0
        self.idle = asyncio.Event()
        self.idle.set()

    def routes(self) -> list[web.RouteDef]:
        """What this engine serves; a pooling model serves no generation and the reverse."""
        routes = [
            web.get("/health", self.health),
            web.get("/ping", self.health),
            web.post("/ping", self.health),
            web.get("/version", self.version),
            web.get("/metrics", self.metrics),
            web.get("/v1/models", self.models),
        ]
        if self._options.embed:
            return [*routes, web.post("/v1/embeddings", self.embeddings)]
        return [
            *routes,
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/completions", self.completions),
        ]

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def version(self, request: web.Request) -> web.Response:
        return _json({"version": VLLM_VERSION})

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.render(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def models(self, request: web.Request) -> web.Response:
        return _json(
            {
                "object": "list",
                "data": [
                    {
                        "id": name,
                        "object": "model",
                        "created": self._started,
                        "owned_by": "vllm",
                        "root": self._options.model,
                        "parent": None,
                        "max_model_len": self._options.max_model_len,
                        "permission": [
                            {
                                "id": f"modelperm-{name}",
                                "object": "model_permission",
                                "created": self._started,
                                "allow_create_engine": False,
                                "allow_sampling": True,
                                "allow_logprobs": True,
                                "allow_search_indices": False,
                                "allow_view": True,
                                "allow_fine_tuning": False,
                                "organization": "*",
                                "group": None,
                                "is_blocking": False,
                            }
                        ],
                    }
                    for name in self._options.served_names
                ],
            }
        )

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request, parse_chat)
        return await self._generate(request, body, chat=True)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request, parse_completion)
        return await self._generate(request, body, chat=False)

    async def embeddings(self, request: web.Request) -> web.Response:
        body = await self._body(request, parse_embedding)
        self._check_model(body.model)
        for prompt in body.prompts:
            self._check_prompt(prompt.tokens)
        answer = CollectedAnswer()
        request_id = f"embd-{_base_id(request)}"
        priority = _priority(request, body.priority)
        for index, prompt in enumerate(body.prompts):
            hashes, key = self._hashes(prompt, body.cache_salt)
            engine_request = EngineRequest(
                request_id=f"{request_id}-{index}",
                prompt_tokens=prompt.tokens,
                output_tokens_target=0,
                priority=priority,
                prompt_block_hashes=hashes,
                content_key=key,
            )
            answer.sequences.append(
                Sequence(engine_request, answer, key, index, "stop", _x_request_id(request), {})
            )
        await self._run(answer)
        return self._embedding_response(request_id, body, answer)

    def _embedding_response(
        self, request_id: str, body: EmbeddingBody, answer: CollectedAnswer
    ) -> web.Response:
        data = []
        for sequence in answer.sequences:
            vector: Any = embedding(sequence.key, self._options.embedding_dimensions)
            if body.base64:
                vector = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
            data.append({"index": sequence.choice, "object": "embedding", "embedding": vector})
        return _json(
            {
                "id": request_id,
                "object": "list",
                "created": int(time.time()),
                "model": self._options.served_names[0],
                "data": data,
                "usage": usage(answer.prompt_tokens(1), 0),
            }
        )

    async def _body(self, request: web.Request, parse: Callable[[Mapping[str, Any]], Body]) -> Body:
        if self.draining:
            raise ApiError(500, "cannot schedule new futures after shutdown")
        if request.content_type != "application/json":
            raise ApiError(400, "Unsupported Media Type: Only 'application/json' is allowed")
        try:
            body = orjson.loads(await request.read())
        except orjson.JSONDecodeError as error:
            raise ApiError(400, f"JSON decode error: {error}") from None
        if not isinstance(body, dict):
            raise ApiError(400, "the body must be a JSON object")
        return parse(body)

    def _check_model(self, model: str | None) -> None:
        names = self._options.served_names
        if model is not None and model not in names:
            aliases = ", ".join(names)
            raise ApiError(
                404, f"The model `{model}` does not exist. Valid aliases: {aliases}.", "model"
            )

    def _check_prompt(self, prompt_tokens: int) -> None:
        limit = self._options.max_model_len
        if prompt_tokens > limit:
            raise ApiError(
                400,
                f"This model's maximum context length is {limit} tokens. However, your prompt "
                f"contains {prompt_tokens} input tokens, which exceeds this limit even without any "
                "output tokens. Please reduce the length of the input prompt. "
                f"(parameter=input_tokens, value={prompt_tokens})",
                "input_tokens",
            )

    def _output_limit(self, prompt_tokens: int, max_tokens: int | None) -> int:
        """vLLM shortens ``max_tokens`` to what the context leaves."""
        limit = self._options.max_model_len
        if max_tokens is not None and max_tokens > limit:
            raise ApiError(
                400,
                f"max_tokens={max_tokens} cannot be greater than max_model_len={limit}. Please "
                f"request fewer output tokens. (parameter=max_tokens, value={max_tokens})",
                "max_tokens",
            )
        self._check_prompt(prompt_tokens)
        room = limit - prompt_tokens
        if room < 1:
            raise ApiError(400, "max_tokens must be at least 1, got 0.", "max_tokens")
        return room if max_tokens is None else min(max_tokens, room)

    def _hashes(self, prompt: Prompt, salt: str) -> tuple[list[int], int]:
        return prompt.hashes(self._options.engine.block_size, salt, self._options.seed)

    async def _generate(
        self, request: web.Request, body: GenerateBody, *, chat: bool
    ) -> web.StreamResponse:
        self._check_model(body.model)
        for prompt in body.prompts:
            self._output_limit(prompt.tokens, body.max_tokens)
        head = AnswerHead(
            answer_id=f"{'chatcmpl' if chat else 'cmpl'}-{_base_id(request)}",
            created=int(time.time()),
            model=self._options.served_names[0],
            chat=chat,
        )
        if body.stream:
            return await self._stream(request, body, head)
        answer = CollectedAnswer()
        self._fill(answer, request, body, head)
        await self._run(answer)
        choices = [head.choice(sequence, body.logprobs) for sequence in answer.sequences]
        totals = usage(answer.prompt_tokens(body.choices), answer.completion_tokens())
        return web.Response(body=head.whole(choices, totals), content_type="application/json")

    async def _stream(
        self, request: web.Request, body: GenerateBody, head: AnswerHead
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        chunked = request.version >= (1, 1)
        if chunked:
            response.enable_chunked_encoding()
        await response.prepare(request)
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client left")
        answer = StreamedAnswer(
            head,
            transport,
            chunked=chunked,
            continuous_usage=body.continuous_usage,
            top_logprobs=body.logprobs,
        )
        self._fill(answer, request, body, head)
        try:
            await self._run(answer)
        except EngineStoppedError as error:
            await response.write(error.event() + DONE)
        else:
            await response.write(answer.remainder(body.choices, include_usage=body.include_usage))
        await response.write_eof()
        return response

    def _fill(
        self, answer: CollectedAnswer, request: web.Request, body: GenerateBody, head: AnswerHead
    ) -> None:
        """One sequence for each prompt and choice, in vLLM's order."""
        x_request_id, priority = _x_request_id(request), _priority(request, body.priority)
        for prompt, echo in zip(body.prompts, body.echo_texts, strict=True):
            hashes, prompt_key = self._hashes(prompt, body.cache_salt)
            for choice in range(body.choices):
                index = len(answer.sequences)
                key = mix(prompt_key, choice) if choice else prompt_key
                target, reason, stop, text_limit = self._ending(key, prompt.tokens, body)
                engine_request = EngineRequest(
                    request_id=f"{head.answer_id}-{index}",
                    prompt_tokens=prompt.tokens,
                    output_tokens_target=target,
                    priority=priority,
                    prompt_block_hashes=hashes,
                    content_key=key,
                )
                answer.sequences.append(
                    Sequence(
                        request=engine_request,
                        receiver=answer,
                        key=key,
                        choice=index,
                        finish_reason=reason,
                        x_request_id=x_request_id,
                        xargs=dict(body.xargs),
                        stop_reason=stop,
                        text_limit=text_limit,
                        echo=echo,
                    )
                )

    def _ending(
        self, key: int, prompt_tokens: int, body: GenerateBody
    ) -> tuple[int, str, str | None, int | None]:
        """How a sequence will end: tokens, finish reason, stop string, length of its text."""
        limit = self._output_limit(prompt_tokens, body.max_tokens)
        target, reason = limit, "length"
        if not (body.ignore_eos or self._options.always_ignore_eos):
            natural = max(self._options.output_lengths.draw(key), body.min_tokens)
            if natural < limit:
                target, reason = natural, "stop"
        if not body.stops:
            return target, reason, None, None
        text = generated_text(key, 0, target)
        found = [(text.find(stop), stop) for stop in body.stops if stop in text]
        if not found:
            return target, reason, None, None
        position, stop = min(found)
        token_chars = len(text) // target
        return -(-(position + len(stop)) // token_chars), "stop", stop, position

    async def _run(self, answer: CollectedAnswer) -> None:
        """Submit all sequences and wait; whatever happens, none is left in the engine."""
        self.open_answers += 1
        self.idle.clear()
        try:
            for sequence in answer.sequences:
                self._loop.submit(sequence)
            await answer.wait()
        finally:
            self.open_answers -= 1
            if not self.open_answers:
                self.idle.set()
            for sequence in answer.sequences:
                self._loop.abort(sequence, "disconnect")


def _json(body: Any) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")


def _x_request_id(request: web.Request) -> str:
    return request.headers.get("X-Request-Id", "")


def _base_id(request: web.Request) -> str:
    return _x_request_id(request) or uuid.uuid4().hex


def _priority(request: web.Request, priority: int) -> int:
    """vLLM's header overrides the body."""
    value = request.headers.get("X-Vllm-Priority")
    if value is None:
        return priority
    try:
        return int(value)
    except ValueError:
        raise ApiError(400, f"X-Vllm-Priority must be an integer, got {value!r}") from None
