"""How long the S-LoRA loop takes for a prefill batch and for a decode step.

    prefill = per_prefill + per_prompt_token * prompt tokens + per_request * requests
    decode  = per_step + per_sequence * sequences + per_kv_token * KV tokens read

and what the client adds to every latency (HTTP, detokenization, its own event loop). The constants
and their sources are in ``engine_model.calibrations``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class Timing:
    """The constants, in seconds (per item, where an item is named)."""

    per_step_seconds: float
    per_sequence_seconds: float
    per_kv_token_seconds: float
    per_prompt_token_seconds: float
    per_prefill_seconds: float = 0.0
    per_request_seconds: float = 0.0
    client_seconds: float = 0.0

    def prefill_seconds(self, prompt_tokens: int, requests: int) -> float:
        """Duration of a batch of prefills, during which nothing decodes."""
        return (
            self.per_prefill_seconds
            + self.per_prompt_token_seconds * prompt_tokens
            + self.per_request_seconds * requests
        )

    def decode_seconds(self, sequences: int, kv_tokens: int) -> float:
        """Duration of a step that gives each sequence one token."""
        return (
            self.per_step_seconds
            + self.per_sequence_seconds * sequences
            + self.per_kv_token_seconds * kv_tokens
        )

    def scaled(self, name: str, factor: float) -> Timing:
        """With one constant multiplied."""
        return replace(self, **{name: getattr(self, name) * factor})

    def perturbed(self, seed: int, sigma: float = 0.01) -> Timing:
        """Each constant multiplied by 1 + N(0, sigma): one member of an ensemble.

        A largest gap hangs on which request finished just before which; a single run says little
        about it.
        """
        noise = random.Random(seed)
        return Timing(
            *(getattr(self, each.name) * (1 + noise.gauss(0, sigma)) for each in fields(self))
        )


CONSTANTS = tuple(each.name for each in fields(Timing))
