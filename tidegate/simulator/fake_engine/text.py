"""Deterministic stand-in for a tokenizer and a model.

Text counts one token for each started 4 bytes of UTF-8; prompts of token ids count exactly. Each
generated token is four ASCII bytes (a blank and three letters), so an answer that comes back in a
prompt counts what it counted. What is generated depends on prompt, cache salt, seed and choice
alone.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from statistics import NormalDist

TOKEN_BYTES = 4
VOCABULARY = 128_256  # Llama 3's, for range checks of token ids

_CONSONANTS = "bdfgklmnprstvwz"
_VOWELS = "aeiou"
WORDS: tuple[str, ...] = tuple(
    f" {a}{b}{c}" for a in _CONSONANTS for b in _VOWELS for c in _CONSONANTS
)[:1024]
WORDS_BYTES: tuple[bytes, ...] = tuple(word.encode() for word in WORDS)
_MASK64 = (1 << 64) - 1


def mix(key: int, index: int) -> int:
    """A well-spread 64-bit number from a key and an index (splitmix64's finaliser)."""
    z = (key + (index + 1) * 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's tokens as bytes, ``bytes_per_token`` each (the last may be shorter)."""

    payload: bytes
    bytes_per_token: int

    @classmethod
    def from_text(cls, text: str) -> Prompt:
        return cls(text.encode("utf-8", "surrogatepass"), TOKEN_BYTES)

    @classmethod
    def from_token_ids(cls, token_ids: Sequence[int]) -> Prompt:
        return cls(array("q", token_ids).tobytes(), 8)

    @property
    def tokens(self) -> int:
        """Length in tokens."""
        return -(-len(self.payload) // self.bytes_per_token)

    def last(self, tokens: int | None) -> Prompt:
        """Its last so many tokens; None: all of it."""
        kept = None if tokens is None else tokens * self.bytes_per_token
        if kept is None or kept >= len(self.payload):
            return self
        return Prompt(self.payload[-kept:], self.bytes_per_token)

    def hashes(self, block_size: int, salt: str, seed: int) -> tuple[list[int], int]:
        """Chained hashes of the full blocks, and the key of the whole prompt."""
        digest = blake2b(f"{self.bytes_per_token}:{seed}:{salt}\0".encode(), digest_size=8)
        block_bytes = block_size * self.bytes_per_token
        blocks: list[int] = []
        full_end = len(self.payload) // block_bytes * block_bytes
        for start in range(0, full_end, block_bytes):
            digest.update(self.payload[start : start + block_bytes])
            blocks.append(int.from_bytes(digest.digest(), "little"))
        digest.update(self.payload[full_end:])
        return blocks, int.from_bytes(digest.digest(), "little")


def token_index(key: int, position: int) -> int:
    """Index into ``WORDS`` of the generated token at ``position``."""
    return mix(key, position) & 1023


def generated_text(key: int, start: int, end: int) -> str:
    """Text of the generated tokens ``start`` to ``end`` (exclusive)."""
    return "".join([WORDS[mix(key, position) & 1023] for position in range(start, end)])


@dataclass(frozen=True, slots=True)
class OutputLengths:
    """How long a model talks when nothing stops it: log-normal, drawn from the prompt's key."""

    median_tokens: float = 128.0
    sigma: float = 0.7

    def __post_init__(self) -> None:
        if self.median_tokens < 1 or self.sigma < 0:
            raise ValueError("median_tokens must be at least 1 and sigma not negative")

    def draw(self, key: int) -> int:
        """Tokens until the model would end by itself, at least 1."""
        if self.sigma == 0:
            return round(self.median_tokens)
        uniform = (mix(key, -2) + 0.5) / (_MASK64 + 1)
        return max(
            1,
            round(math.exp(NormalDist(math.log(self.median_tokens), self.sigma).inv_cdf(uniform))),
        )


def embedding(key: int, dimensions: int) -> list[float]:
    """A unit vector that depends on the key alone."""
    raw = [mix(key, index) / _MASK64 - 0.5 for index in range(dimensions)]
    norm = math.sqrt(sum(value * value for value in raw)) or 1.0
    return [value / norm for value in raw]
