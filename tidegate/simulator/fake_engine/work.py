"""What every endpoint does: read a body, check it against the model, run sequences, wait."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import orjson
from aiohttp import web

from tidegate.simulator.engine_model import EngineRequest
from tidegate.simulator.fake_engine.answers import CollectedAnswer
from tidegate.simulator.fake_engine.bodies import GenerateBody
from tidegate.simulator.fake_engine.errors import ApiError
from tidegate.simulator.fake_engine.loop import EngineLoop
from tidegate.simulator.fake_engine.options import Options
from tidegate.simulator.fake_engine.sequence import Sequence
from tidegate.simulator.fake_engine.text import Prompt, generated_text, mix

Body = TypeVar("Body")


class Work:
    """Of one engine. ``draining`` True: new work is refused, as in vLLM with 500."""

    def __init__(self, options: Options, loop: EngineLoop) -> None:
        self.options = options
        self._loop = loop
        self.draining = False
        self.open_answers = 0
        self.idle = asyncio.Event()
        self.idle.set()

    async def body(self, request: web.Request, parse: Callable[[Mapping[str, Any]], Body]) -> Body:
        """The checked body; ApiError 400: malformed."""
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

    def check_model(self, model: str | None) -> None:
        """ApiError 404: not served."""
        names = self.options.served_names
        if model is not None and model not in names:
            aliases = ", ".join(names)
            raise ApiError(
                404, f"The model `{model}` does not exist. Valid aliases: {aliases}.", "model"
            )

    def check_prompt(self, prompt_tokens: int) -> None:
        """ApiError 400: above the context."""
        limit = self.options.max_model_len
        if prompt_tokens > limit:
            raise ApiError(
                400,
                f"This model's maximum context length is {limit} tokens. However, your prompt "
                f"contains {prompt_tokens} input tokens, which exceeds this limit even without any "
                "output tokens. Please reduce the length of the input prompt. "
                f"(parameter=input_tokens, value={prompt_tokens})",
                "input_tokens",
            )

    def output_limit(self, prompt_tokens: int, max_tokens: int | None) -> int:
        """vLLM shortens ``max_tokens`` to what the context leaves."""
        limit = self.options.max_model_len
        if max_tokens is not None and max_tokens > limit:
            raise ApiError(
                400,
                f"max_tokens={max_tokens} cannot be greater than max_model_len={limit}. Please "
                f"request fewer output tokens. (parameter=max_tokens, value={max_tokens})",
                "max_tokens",
            )
        self.check_prompt(prompt_tokens)
        room = limit - prompt_tokens
        if room < 1:
            raise ApiError(400, "max_tokens must be at least 1, got 0.", "max_tokens")
        return room if max_tokens is None else min(max_tokens, room)

    def hashes(self, prompt: Prompt, salt: str) -> tuple[list[int], int]:
        """Of its blocks, and of all of it."""
        return prompt.hashes(self.options.engine.block_size, salt, self.options.seed)

    def fill(
        self, answer: CollectedAnswer, request: web.Request, body: GenerateBody, answer_id: str
    ) -> None:
        """One sequence for each prompt and choice, in vLLM's order."""
        x_request_id, priority = x_request_id_of(request), priority_of(request, body.priority)
        for prompt, echo in zip(body.prompts, body.echo_texts, strict=True):
            hashes, prompt_key = self.hashes(prompt, body.cache_salt)
            for choice in range(body.choices):
                index = len(answer.sequences)
                key = mix(prompt_key, choice) if choice else prompt_key
                target, reason, stop, text_limit = self._ending(key, prompt.tokens, body)
                engine_request = EngineRequest(
                    request_id=f"{answer_id}-{index}",
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
        limit = self.output_limit(prompt_tokens, body.max_tokens)
        target, reason = limit, "length"
        if not (body.ignore_eos or self.options.always_ignore_eos):
            natural = max(self.options.output_lengths.draw(key), body.min_tokens)
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

    async def run(self, answer: CollectedAnswer) -> None:
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


def json_response(body: Any) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")


def x_request_id_of(request: web.Request) -> str:
    return request.headers.get("X-Request-Id", "")


def base_id(request: web.Request) -> str:
    return x_request_id_of(request) or uuid.uuid4().hex


def priority_of(request: web.Request, priority: int) -> int:
    """vLLM's header overrides the body."""
    value = request.headers.get("X-Vllm-Priority")
    if value is None:
        return priority
    try:
        return int(value)
    except ValueError:
        raise ApiError(400, f"X-Vllm-Priority must be an integer, got {value!r}") from None


async def event_stream(
    request: web.Request,
) -> tuple[web.StreamResponse, asyncio.WriteTransport, bool]:
    """A begun 200 of server-sent events, its transport, and whether its body is framed."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    chunked = request.version >= (1, 1)
    if chunked:
        response.enable_chunked_encoding()
    await response.prepare(request)
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client left")
    return response, transport, chunked
