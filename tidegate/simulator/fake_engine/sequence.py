"""One generated sequence on its way to a client, and what receives it.

The engine loop knows ``Sequence`` and ``Receiver`` only: per step it tells a receiver which of its
sequences got a token, then has it flush once. A receiver never blocks the loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tidegate.simulator.engine_model import EngineRequest
from tidegate.simulator.fake_engine.text import WORDS, generated_text, token_index


class Receiver(Protocol):
    """One HTTP request's answer in the making."""

    def on_token(self, sequence: Sequence) -> None:
        """``sequence.request.output_tokens`` has grown by one."""

    def on_finished(self, sequence: Sequence) -> None:
        """The sequence ended by itself (after its last ``on_token``, in the same step)."""

    def flush(self) -> None:
        """The step's tokens are complete."""

    def on_engine_stopped(self) -> None:
        """The engine ends and will not finish the sequences."""


@dataclass(slots=True, eq=False)
class Sequence:
    """An engine request with what the API needs besides: key, choice, reason, identity."""

    request: EngineRequest
    receiver: Receiver
    key: int
    choice: int
    finish_reason: str
    x_request_id: str
    xargs: dict[str, object]
    stop_reason: str | None = None
    text_limit: int | None = None
    echo: str = ""
    delivered_tokens: int = 0

    def text(self, start: int, end: int) -> str:
        """Text of tokens ``start`` to ``end``, cut before a stop string."""
        if self.text_limit is None:
            return generated_text(self.key, start, end)
        offset = len(generated_text(self.key, 0, start))
        return generated_text(self.key, start, end)[: max(self.text_limit - offset, 0)]

    def logprobs(self, start: int, end: int, top: int) -> list[list[tuple[str, float]]]:
        """For each token: itself first, then ``top`` - 1 less likely ones (at least itself)."""
        rows = []
        for position in range(start, end):
            index = token_index(self.key, position)
            likelihood = -((index * 37) % 1000) / 1000
            rows.append(
                [
                    (WORDS[(index + rank) % len(WORDS)], likelihood - rank)
                    for rank in range(max(top, 1))
                ]
            )
        return rows
