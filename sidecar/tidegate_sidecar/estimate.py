"""How many tokens a prompt has, before the engine has counted it.

Text is estimated as UTF-8 bytes / ratio, token ids are exact. The ratio starts at 4 bytes a token
(English prose under byte-pair encodings) and follows what the engine reports: a decayed sum of
bytes over a decayed sum of tokens, so that long prompts count for what they cost. It is kept within
1..8; below 1 byte a token no byte-level tokenizer goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BYTES_PER_TOKEN_PRIOR = 4.0
_PRIOR_TOKENS = 2_000.0
_DECAY_PER_REQUEST = 0.99
MESSAGE_OVERHEAD_TOKENS = 4
"""Role and separators that a chat template adds to each message."""


@dataclass(frozen=True, slots=True)
class PromptSize:
    """What of a body becomes prompt tokens."""

    text_bytes: int = 0
    fixed_tokens: int = 0
    """Counted exactly (token ids) or by a constant (message overhead, images)."""
    prompts: int = 1
    texts: Sequence[str] = ()
    """What ``text_bytes`` counts."""

    @classmethod
    def of(cls, texts: Sequence[str], fixed_tokens: int = 0, prompts: int = 1) -> PromptSize:
        """The size of these texts and so many tokens besides."""
        return cls(sum(map(utf8_length, texts)), fixed_tokens, prompts, texts)


def utf8_length(text: str) -> int:
    """Bytes of its UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


class Estimator:
    """Prompt tokens from sizes, calibrated by the engine's usage."""

    def __init__(self) -> None:
        self._tokens = _PRIOR_TOKENS
        self._bytes = _PRIOR_TOKENS * BYTES_PER_TOKEN_PRIOR

    @property
    def bytes_per_token(self) -> float:
        return min(8.0, max(1.0, self._bytes / self._tokens))

    def tokens(self, size: PromptSize) -> int:
        """Estimated prompt tokens; at least one per prompt."""
        text = size.text_bytes / self.bytes_per_token
        return max(size.prompts, size.fixed_tokens + round(text))

    def most_tokens(self, size: PromptSize) -> int:
        """No byte-level tokenizer makes more of it, up to what a chat template adds."""
        return size.fixed_tokens + size.text_bytes

    def observe(self, size: PromptSize, prompt_tokens: int) -> None:
        """The engine counted ``prompt_tokens`` for a prompt of this size."""
        text_tokens = prompt_tokens - size.fixed_tokens
        if size.text_bytes < 32 or text_tokens < 4:
            return
        self._tokens = self._tokens * _DECAY_PER_REQUEST + text_tokens
        self._bytes = self._bytes * _DECAY_PER_REQUEST + size.text_bytes
