"""The HTTP endpoints: health, models, chat and completions; and the routes of all."""

from __future__ import annotations

import time

from aiohttp import web

from tidegate.simulator.fake_engine.answers import CollectedAnswer, StreamedAnswer
from tidegate.simulator.fake_engine.bodies import GenerateBody, parse_chat, parse_completion
from tidegate.simulator.fake_engine.errors import EngineStoppedError
from tidegate.simulator.fake_engine.loop import EngineLoop
from tidegate.simulator.fake_engine.metrics import EngineMetrics
from tidegate.simulator.fake_engine.options import Options
from tidegate.simulator.fake_engine.pooling import pooling_routes
from tidegate.simulator.fake_engine.responses import Responses
from tidegate.simulator.fake_engine.tokenizing import tokenizing_routes
from tidegate.simulator.fake_engine.wire import DONE, AnswerHead, usage
from tidegate.simulator.fake_engine.work import Work, base_id, event_stream, json_response

VLLM_VERSION = "0.32.0"


class Handlers:
    """All endpoints of one engine."""

    def __init__(self, options: Options, loop: EngineLoop, metrics: EngineMetrics) -> None:
        self.work = Work(options, loop)
        self._options = options
        self._metrics = metrics
        self._started = int(time.time())

    def routes(self) -> list[web.RouteDef]:
        """What this engine serves; a pooling model serves no generation and the reverse."""
        routes = [
            web.get("/health", self.health),
            web.get("/ping", self.health),
            web.post("/ping", self.health),
            web.get("/version", self.version),
            web.get("/metrics", self.metrics),
            web.get("/v1/models", self.models),
            *tokenizing_routes(self.work),
        ]
        if self._options.embed:
            return [*routes, *pooling_routes(self.work)]
        return [
            *routes,
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/completions", self.completions),
            web.post("/v1/responses", Responses(self.work).create),
        ]

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def version(self, request: web.Request) -> web.Response:
        return json_response({"version": VLLM_VERSION})

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.render(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def models(self, request: web.Request) -> web.Response:
        return json_response(
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
        body = await self.work.body(request, parse_chat)
        return await self._generate(request, body, chat=True)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await self.work.body(request, parse_completion)
        return await self._generate(request, body, chat=False)

    async def _generate(
        self, request: web.Request, body: GenerateBody, *, chat: bool
    ) -> web.StreamResponse:
        self.work.check_model(body.model)
        for prompt in body.prompts:
            self.work.output_limit(prompt.tokens, body.max_tokens)
        head = AnswerHead(
            answer_id=f"{'chatcmpl' if chat else 'cmpl'}-{base_id(request)}",
            created=int(time.time()),
            model=self._options.served_names[0],
            chat=chat,
        )
        if body.stream:
            return await self._stream(request, body, head)
        answer = CollectedAnswer()
        self.work.fill(answer, request, body, head.answer_id)
        await self.work.run(answer)
        choices = [head.choice(sequence, body.logprobs) for sequence in answer.sequences]
        totals = usage(answer.prompt_tokens(body.choices), answer.completion_tokens())
        return web.Response(body=head.whole(choices, totals), content_type="application/json")

    async def _stream(
        self, request: web.Request, body: GenerateBody, head: AnswerHead
    ) -> web.StreamResponse:
        response, transport, chunked = await event_stream(request)
        answer = StreamedAnswer(
            head,
            transport,
            chunked=chunked,
            continuous_usage=body.continuous_usage,
            top_logprobs=body.logprobs,
        )
        self.work.fill(answer, request, body, head.answer_id)
        try:
            await self.work.run(answer)
        except EngineStoppedError as error:
            await response.write(error.event() + DONE)
        else:
            await response.write(answer.remainder(body.choices, include_usage=body.include_usage))
        await response.write_eof()
        return response
