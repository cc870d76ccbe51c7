"""``/tokenize`` and ``/detokenize``: the stand-in tokenizer of :mod:`.text`, four bytes a token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from tidegate.simulator.fake_engine.bodies import chat_prompt
from tidegate.simulator.fake_engine.errors import ApiError
from tidegate.simulator.fake_engine.members import boolean, model_name, typed
from tidegate.simulator.fake_engine.text import TOKEN_BYTES, VOCABULARY, Prompt
from tidegate.simulator.fake_engine.work import Work, json_response


@dataclass(frozen=True, slots=True)
class _Text:
    model: str | None
    prompt: Prompt
    strings: bool


@dataclass(frozen=True, slots=True)
class _Tokens:
    model: str | None
    tokens: list[int]


def tokenizing_routes(work: Work) -> list[web.RouteDef]:
    """Both."""

    async def tokenize(request: web.Request) -> web.Response:
        body = await work.body(request, _parse_tokenize)
        work.check_model(body.model)
        payload = body.prompt.payload
        pieces = [payload[at : at + TOKEN_BYTES] for at in range(0, len(payload), TOKEN_BYTES)]
        return json_response(
            {
                "count": len(pieces),
                "max_model_len": work.options.max_model_len,
                "tokens": [int.from_bytes(piece, "little") % VOCABULARY for piece in pieces],
                "token_strs": [p.decode("utf-8", "replace") for p in pieces]
                if body.strings
                else None,
            }
        )

    async def detokenize(request: web.Request) -> web.Response:
        body = await work.body(request, _parse_detokenize)
        work.check_model(body.model)
        return json_response({"prompt": "".join(f" t{token}" for token in body.tokens)})

    return [web.post("/tokenize", tokenize), web.post("/detokenize", detokenize)]


def _parse_tokenize(body: Mapping[str, Any]) -> _Text:
    text = typed(body, "prompt", str, "a string")
    prompt = chat_prompt(body) if text is None else Prompt.from_text(text)
    return _Text(model_name(body), prompt, boolean(body, "return_token_strs"))


def _parse_detokenize(body: Mapping[str, Any]) -> _Tokens:
    tokens = typed(body, "tokens", list, "a list of token ids")
    if tokens is None or not all(type(token) is int and token >= 0 for token in tokens):
        raise ApiError(400, "tokens must be a list of token ids", "tokens")
    return _Tokens(model_name(body), tokens)
