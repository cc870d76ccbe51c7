"""How many tokens a prompt has, before the engine has counted it.

Text is estimated as UTF-8 bytes / ratio; token ids are exact, images and audio follow the rules of
:mod:`.media`. The ratio starts at 4 bytes a token (English prose under byte-pair encodings) and
follows what the engine reports: a decayed sum of bytes over a decayed sum of tokens, so that long
prompts count for what they cost. It is kept within 1..8; below 1 byte a token no byte-level
tokenizer goes. Tenants write in different languages, so each has a ratio of its own, which begins
at that of all of them together.

How far off it may be is measured likewise: three times the decayed mean of the relative error, from
a factor of two at first. Where a decision falls between what the prompt may least and most be, it
is worth an exact count (:mod:`.token_counter`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BYTES_PER_TOKEN_PRIOR = 4.0
_PRIOR_TOKENS = 2_000.0
_DECAY_PER_REQUEST = 0.99
_ERROR_PRIOR = 1 / 3
_ERROR_GAIN = 0.05
_ERROR_MARGIN = 3.0
MESSAGE_OVERHEAD_TOKENS = 4
"""Role and separators that a chat template adds to each message."""
_MOST_TENANTS = 8_192
"""Beyond it the one that was seen first starts anew."""


@dataclass(slots=True)
class PromptSize:
    """What of a body becomes prompt tokens; nobody changes one, as with the body."""

    text_bytes: int = 0
    fixed_tokens: int = 0
    """Counted exactly (token ids) or by a rule (message overhead, images)."""
    prompts: int = 1
    texts: Sequence[str] = ()
    """What ``text_bytes`` counts."""
    text_tokens: int | None = None
    """Of the text, counted; unset: to be estimated."""

    @classmethod
    def of(cls, texts: Sequence[str], fixed_tokens: int = 0, prompts: int = 1) -> PromptSize:
        """The size of these texts and so many tokens besides."""
        return cls(sum(map(utf8_length, texts)), fixed_tokens, prompts, texts)


def utf8_length(text: str) -> int:
    """Bytes of its UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


class Estimator:
    """Prompt tokens from sizes, calibrated by the engine's usage; of all tenants, or of one."""

    def __init__(self, of_all: Estimator | None = None) -> None:
        ratio: float = BYTES_PER_TOKEN_PRIOR if of_all is None else of_all.bytes_per_token
        self._of_all = of_all
        self._tenants: dict[str, Estimator] = {}
        self.bytes_per_token: float = ratio
        self._tokens = _PRIOR_TOKENS
        self._bytes = _PRIOR_TOKENS * ratio
        self._error: float = _ERROR_PRIOR if of_all is None else of_all._error

    def of(self, tenant: str) -> Estimator:
        """A tenant's own."""
        own = self._tenants.get(tenant)
        if own is None:
            if len(self._tenants) >= _MOST_TENANTS:
                del self._tenants[next(iter(self._tenants))]
            own = self._tenants[tenant] = Estimator(self)
        return own

    def tokens(self, size: PromptSize) -> int:
        """Estimated prompt tokens; at least one per prompt."""
        text = size.text_tokens
        if text is None:
            text = round(size.text_bytes / self.bytes_per_token)
        return max(size.prompts, size.fixed_tokens + text)

    def text_tokens(self, text: str) -> int:
        """Of a prompt that is one text."""
        return max(1, round(utf8_length(text) / self.bytes_per_token))

    def most_tokens(self, size: PromptSize) -> int:
        """No byte-level tokenizer makes more of it, up to what a chat template adds."""
        text = size.text_bytes if size.text_tokens is None else size.text_tokens
        return size.fixed_tokens + text

    def is_between(self, size: PromptSize, bounds: Sequence[float]) -> bool:
        """Whether the true count may lie on either side of one of these."""
        if size.text_tokens is not None or not size.text_bytes:
            return False
        text = size.text_bytes / self.bytes_per_token
        factor = 1 + _ERROR_MARGIN * self._error
        low, high = size.fixed_tokens + text / factor, size.fixed_tokens + text * factor
        return any(low <= bound < high for bound in bounds)

    def observe(self, size: PromptSize, prompt_tokens: int) -> None:
        """The engine counted ``prompt_tokens`` for a prompt of this size."""
        text_tokens = prompt_tokens - size.fixed_tokens
        if size.text_bytes < 32 or text_tokens < 4:
            return
        error = abs(size.text_bytes / self.bytes_per_token - text_tokens) / text_tokens
        self._error += _ERROR_GAIN * (min(error, 1.0) - self._error)
        self._tokens = self._tokens * _DECAY_PER_REQUEST + text_tokens
        self._bytes = self._bytes * _DECAY_PER_REQUEST + size.text_bytes
        self.bytes_per_token = min(8.0, max(1.0, self._bytes / self._tokens))
        if self._of_all is not None:
            self._of_all.observe(size, prompt_tokens)
