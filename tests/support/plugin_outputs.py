"""Real engines in one process, stock and with the plug-in: do they say the same?

``PYTHON tests/support/plugin_outputs.py MODEL POLICY REQUESTS`` in vLLM's environment: one JSON
object with, by run, what each request said (token ids), the gap between stock's two likeliest
tokens at each position, and the plug-in's counters. All decoding is greedy. The control is stock
with the requests in another order: batches differ there too, and with them the last bits of a sum.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from vllm import EngineArgs, LLMEngine, SamplingParams

BLOCKS = 48
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}


def requests(count: int) -> list[tuple[str, list[int], int, dict[str, Any]]]:
    """Mixed tiers, prefixes and lengths: all together they need the cache several times over."""
    rng = random.Random(20260101)
    prefixes = [[rng.randrange(4, 500) for _ in range(64)] for _ in range(3)]
    found = []
    for number in range(count):
        tier = ("t0", "t2", "t3", "t3")[number % 4]
        prompt = prefixes[number % 3][: rng.choice((0, 32, 64))]
        prompt = prompt + [rng.randrange(4, 500) for _ in range(rng.randrange(20, 200))]
        tags = {"tidegate_tier": tier, "tidegate_tenant": tier, "tidegate_sequence": number}
        found.append((f"{tier}-{number}", prompt, rng.randrange(24, 64), tags))
    return found


def engine(model: str, **arguments: Any) -> LLMEngine:
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=model,
            max_model_len=1024,
            max_num_seqs=12,
            max_num_batched_tokens=256,
            block_size=32,
            num_gpu_blocks_override=BLOCKS,
            enforce_eager=True,
            **arguments,
        )
    )


def run(
    serving: LLMEngine, count: int, *, reverse: bool = False, gaps: bool = False
) -> dict[str, Any]:
    """All requests through one engine; most of them arrive while others run."""
    todo = requests(count)
    if reverse:
        todo.reverse()
    said: dict[str, list[int]] = {}
    gap: dict[str, list[float]] = {}
    steps = 0
    while todo or serving.has_unfinished_requests():
        for _ in range(min(2, len(todo)) if steps % 3 == 0 else 0):
            name, prompt, tokens, tags = todo.pop(0)
            params = SamplingParams(
                temperature=0.0,
                max_tokens=tokens,
                ignore_eos=True,
                extra_args=tags,
                logprobs=2 if gaps else None,
                detokenize=False,
            )
            serving.add_request(name, {"prompt_token_ids": prompt}, params)
        for output in serving.step():
            if output.finished:
                said[output.request_id] = list(output.outputs[0].token_ids)
                gap[output.request_id] = [_gap(at) for at in output.outputs[0].logprobs or ()]
        steps += 1
    return {"said": said, "gap": gap}


def _counters(serving: LLMEngine) -> dict[str, Any]:
    counters = serving.engine_core.engine_core.scheduler.tidegate.counters
    return {
        "planned_steps": counters.planned_steps,
        "preempted": counters.preempted,
        "failures": dict(counters.failures),
    }


def _gap(position: Any) -> float:
    first, second = sorted((one.logprob for one in position.values()), reverse=True)[:2]
    return float(first - second)


def main(model: str, policy: str, count: str) -> None:
    ours: dict[str, Any] = {
        "scheduler_cls": "tidegate.vllm_plugin.TidegateScheduler",
        "additional_config": {"tidegate": {"policy": policy}},
    }
    stock = engine(model)
    told = {"stock": run(stock, int(count), gaps=True)}
    stock.reset_prefix_cache()
    told["control"] = run(stock, int(count), reverse=True)
    stock.engine_core.shutdown()
    for name, drafts in (("plug-in", {}), ("plug-in with ngram", {"speculative_config": NGRAM})):
        steered = engine(model, **ours, **drafts)
        told[name] = run(steered, int(count)) | {"counters": _counters(steered)}
        steered.engine_core.shutdown()
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
