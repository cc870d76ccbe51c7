"""Prompts of a given number of tokens, as text or as token ids.

Text is made of three-letter words and spaces: exactly 4 bytes a token, which is how the fake engine
counts, and about a token a word in the usual byte-pair vocabularies. Token ids are exact for every
tokenizer. The content is drawn from the request's identity; equal blocks of a shared prefix are
equal text, so that an engine's prefix cache hits as it did where a trace was recorded.
"""

from __future__ import annotations

from random import Random

from tidegate.workload.requests import PlannedRequest

BYTES_PER_TOKEN = 4

_WORD_LIST = """
act age ago air all and any are arm art ask bad bag bar bed big bit box boy bus but buy can car
cut day did dog dry due eat end eye far few fit fly for fun get god got had has hat her him his
hit hot how ice its job key law lay led let lie lot low man may
"""
_WORDS = _WORD_LIST.split()
_WORD_OF_BYTE = [f"{_WORDS[byte % len(_WORDS)]} " for byte in range(256)]
_FIRST_TOKEN_ID = 10
"""Lower ids are special tokens in the usual vocabularies."""


def prompt_text(request: PlannedRequest, seed: int) -> str:
    """Text of ``request.prompt_tokens`` tokens, 4 bytes each."""
    return "".join(
        "".join(map(_WORD_OF_BYTE.__getitem__, random.randbytes(tokens)))
        for random, tokens in _pieces(request, seed)
    )


def prompt_token_ids(request: PlannedRequest, seed: int, limit: int) -> list[int]:
    """``request.prompt_tokens`` token ids below ``limit``."""
    span = limit - _FIRST_TOKEN_ID
    ids: list[int] = []
    for random, tokens in _pieces(request, seed):
        words = memoryview(random.randbytes(4 * tokens)).cast("I")
        ids.extend(_FIRST_TOKEN_ID + word % span for word in words)
    return ids


def _pieces(request: PlannedRequest, seed: int) -> list[tuple[Random, int]]:
    """Generators and how many tokens to draw from each: the shared blocks, then the rest."""
    pieces = []
    left = request.prompt_tokens
    if request.prefix is not None:
        source = f"{request.prefix.source}/" if request.prefix.source else ""
        for block in request.prefix.block_ids:
            tokens = min(request.prefix.block_tokens, left)
            if tokens > 0:
                pieces.append((Random(f"{seed}/block/{source}{block}"), tokens))
            left -= tokens
    if left > 0:
        own = Random(f"{seed}/{request.tenant}/prompt/{request.index}")
        pieces.append((own, left))
    return pieces
