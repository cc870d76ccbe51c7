"""The endpoints of a model that pools: embeddings, scores and reranks, as vLLM 0.32 answers them.

A score is made up: it depends on the pair alone and lies in 0..1.
"""

from __future__ import annotations

import base64
import struct
import time
from typing import Any

from aiohttp import web

from tidegate.simulator.engine_model import EngineRequest
from tidegate.simulator.fake_engine.answers import CollectedAnswer
from tidegate.simulator.fake_engine.pooling_bodies import (
    PoolingBody,
    parse_embedding,
    parse_rerank,
    parse_score,
)
from tidegate.simulator.fake_engine.sequence import Sequence
from tidegate.simulator.fake_engine.text import embedding, mix
from tidegate.simulator.fake_engine.wire import usage
from tidegate.simulator.fake_engine.work import (
    Work,
    base_id,
    json_response,
    priority_of,
    x_request_id_of,
)


def pooling_routes(work: Work) -> list[web.RouteDef]:
    """Each under all of its paths."""
    pooling = _Pooling(work)
    return [
        web.post("/v1/embeddings", pooling.embeddings),
        *(web.post(path, pooling.score) for path in ("/score", "/v1/score")),
        *(web.post(path, pooling.rerank) for path in ("/rerank", "/v1/rerank", "/v2/rerank")),
    ]


class _Pooling:
    def __init__(self, work: Work) -> None:
        self._work = work

    async def embeddings(self, request: web.Request) -> web.Response:
        body = await self._work.body(request, parse_embedding)
        request_id = f"embd-{base_id(request)}"
        answer = await self._read(request, request_id, body)
        data = []
        for sequence in answer.sequences:
            vector: Any = embedding(sequence.key, self._work.options.embedding_dimensions)
            if body.base64:
                vector = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
            data.append({"index": sequence.choice, "object": "embedding", "embedding": vector})
        return self._list(request_id, data, answer)

    async def score(self, request: web.Request) -> web.Response:
        body = await self._work.body(request, parse_score)
        request_id = f"score-{base_id(request)}"
        answer = await self._read(request, request_id, body)
        data = [
            {"index": sequence.choice, "object": "score", "score": _score(sequence)}
            for sequence in answer.sequences
        ]
        return self._list(request_id, data, answer)

    async def rerank(self, request: web.Request) -> web.Response:
        body = await self._work.body(request, parse_rerank)
        request_id = f"rerank-{base_id(request)}"
        answer = await self._read(request, request_id, body.pairs)
        results = [
            {
                "index": index,
                "document": {"text": body.documents[index], "multi_modal": None},
                "relevance_score": _score(sequence),
            }
            for index, sequence in enumerate(answer.sequences)
        ]
        results.sort(key=lambda result: -float(str(result["relevance_score"])))
        tokens = answer.prompt_tokens(1)
        return json_response(
            {
                "id": request_id,
                "model": self._work.options.served_names[0],
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
                "results": results[: body.top_n or None],
            }
        )

    async def _read(
        self, request: web.Request, request_id: str, body: PoolingBody
    ) -> CollectedAnswer:
        """One sequence for each prompt, to its end."""
        work = self._work
        work.check_model(body.model)
        for prompt in body.prompts:
            work.check_prompt(prompt.tokens)
        answer = CollectedAnswer()
        priority = priority_of(request, body.priority)
        for index, prompt in enumerate(body.prompts):
            hashes, key = work.hashes(prompt, body.cache_salt)
            engine_request = EngineRequest(
                request_id=f"{request_id}-{index}",
                prompt_tokens=prompt.tokens,
                output_tokens_target=0,
                priority=priority,
                prompt_block_hashes=hashes,
                content_key=key,
            )
            answer.sequences.append(
                Sequence(engine_request, answer, key, index, "stop", x_request_id_of(request), {})
            )
        await work.run(answer)
        return answer

    def _list(
        self, request_id: str, data: list[dict[str, Any]], answer: CollectedAnswer
    ) -> web.Response:
        return json_response(
            {
                "id": request_id,
                "object": "list",
                "created": int(time.time()),
                "model": self._work.options.served_names[0],
                "data": data,
                "usage": {
                    **usage(answer.prompt_tokens(1), 0),
                    "prompt_tokens_details": None,
                    "completion_tokens_details": None,
                },
            }
        )


def _score(sequence: Sequence) -> float:
    return mix(sequence.key, 0) % 1_000_003 / 1_000_003
