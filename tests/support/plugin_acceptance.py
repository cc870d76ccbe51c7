"""Drafts of a known acceptance through real engines with the plug-in: what is told of them?

``PYTHON tests/support/plugin_acceptance.py MODEL POLICY RATE ...`` in vLLM's environment, with the
repository's root and its ``tests`` folder on PYTHONPATH: one JSON object. vLLM's synthetic
rejection is not there on CPUs, so the drafts are: greedy outputs are known from a first run
without any, and a drafter proposes the true next token as often as RATE says, else a wrong one.
T3 has no drafts by POLICY.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from vllm import EngineArgs, LLMEngine, SamplingParams

REQUESTS = 12
OUTPUT_TOKENS = 120
PROMPT_TOKENS = 24
TIERS = ("t0", "t3")
_GOLDEN = 0.6180339887498949
"""Multiples of it lie evenly in 0..1: the rate is met to a few parts in a thousand."""


def prompts() -> list[list[int]]:
    rng = random.Random(20260101)
    return [[rng.randrange(4, 500) for _ in range(PROMPT_TOKENS)] for _ in range(REQUESTS)]


def engine(model: str, policy: str, **arguments: Any) -> LLMEngine:
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=model,
            max_model_len=1024,
            max_num_seqs=REQUESTS,
            max_num_batched_tokens=1024,
            block_size=32,
            num_gpu_blocks_override=200,
            enforce_eager=True,
            scheduler_cls="tidegate.vllm_plugin.TidegateScheduler",
            additional_config={"tidegate": {"policy": policy, "statistics": "/nowhere"}},
            **arguments,
        )
    )


def draft(rate: float, said: dict[int, list[int]]) -> None:
    """Make vLLM's proposer from the prompt one that knows the answers. It may be imported only once
    an engine has started."""
    from vllm.v1.spec_decode.ngram_proposer import NgramProposer

    starts = {tuple(prompt): number for number, prompt in enumerate(prompts())}
    drawn: Counter[int] = Counter()

    def propose(
        self: object, drafts: int, sampled: Any, sizes: Any, tokens: Any, **_: object
    ) -> list[list[int]]:
        proposed: list[list[int]] = []
        for row, new in enumerate(sampled):
            number = starts.get(tuple(tokens[row, :PROMPT_TOKENS].tolist()))
            place = int(sizes[row]) - PROMPT_TOKENS
            if not new or number is None or place >= OUTPUT_TOKENS:
                proposed.append([])
                continue
            drawn[number] += 1
            right = (drawn[number] * _GOLDEN) % 1.0 < rate
            token = said[number][place]
            proposed.append([token if right else (token + 1) % 500])
        return proposed

    NgramProposer.propose = propose


def run(serving: LLMEngine) -> dict[str, Any]:
    """All requests; what was said, and what the plug-in told by tier."""
    scheduler = serving.engine_core.engine_core.scheduler
    told: list[dict[str, Any]] = []
    scheduler.tidegate._notes._tell = told.append
    for number, prompt in enumerate(prompts()):
        tier = TIERS[number % 2]
        tags = {"tidegate_tier": tier, "tidegate_tenant": tier, "tidegate_sequence": number}
        params = SamplingParams(
            temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True, extra_args=tags,
            detokenize=False,
        )  # fmt: skip
        serving.add_request(str(number), {"prompt_token_ids": prompt}, params)
    said: dict[int, list[int]] = {}
    while serving.has_unfinished_requests():
        for output in serving.step():
            if output.finished:
                said[int(output.request_id)] = list(output.outputs[0].token_ids)
    sums: dict[str, Counter[str]] = {name: Counter() for name in ("drafted", "accepted", "decodes")}
    for step in told:
        for drafts in step.get("drafts", ()):
            sums["drafted"][drafts["tier"]] += drafts["drafted_tokens"]
            sums["accepted"][drafts["tier"]] += drafts["accepted_tokens"]
        sums["decodes"].update(TIERS[sequence % 2] for sequence in step["decodes"])
    failures = scheduler.tidegate.counters.failures.total()
    return {"said": said, "failures": failures, **sums}


def main(model: str, policy: str, *rates: str) -> None:
    serving = engine(model, policy)
    plain = run(serving)
    serving.engine_core.shutdown()
    found = {"plain": plain}
    drafts = {"method": "ngram", "num_speculative_tokens": 1, "prompt_lookup_max": 1}
    serving = engine(model, policy, speculative_config=drafts)
    for rate in rates:
        draft(float(rate), plain["said"])
        found[rate] = run(serving)
    serving.engine_core.shutdown()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
