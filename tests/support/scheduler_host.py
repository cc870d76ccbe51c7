"""vLLM's scheduler driven by hand: no model runs, its outputs are fabricated.

It runs in vLLM's environment. A host has one scheduler of a class of choice, a clock that its steps
advance, and up to ``depth`` steps in flight, as vLLM's engine core has with async scheduling: a
step's output comes back when more than ``depth - 1`` others were scheduled after it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

STEP_SECONDS = 0.02
BLOCK_TOKENS = 32


@dataclass
class Step:
    """What one call of ``schedule()`` gave, as seen at once after it."""

    prefill: dict[str, int] = field(default_factory=dict)
    """Prompt tokens (or recomputed ones) by request."""
    decodes: set[str] = field(default_factory=set)
    preempted: list[str] = field(default_factory=list)
    output: Any = None
    sampling: set[str] = field(default_factory=set)


def engine_config(model: str, **arguments: Any) -> VllmConfig:
    """An engine's configuration as ``vllm serve`` would make it."""
    defaults: dict[str, Any] = {
        "max_model_len": 8192,
        "max_num_seqs": 32,
        "max_num_batched_tokens": 2048,
        "block_size": BLOCK_TOKENS,
        "enforce_eager": True,
        "skip_tokenizer_init": True,
    }
    return EngineArgs(model=model, **(defaults | arguments)).create_engine_config()


class SchedulerHost:
    """One scheduler and its requests."""

    def __init__(
        self,
        kind: type,
        config: VllmConfig,
        blocks: int,
        *,
        depth: int = 1,
        policy: dict[str, Any] | None = None,
        folder: Path | None = None,
        statistics: str | None = None,
    ) -> None:
        if policy is not None and folder is not None:
            self.policy_path = folder / "policy.json"
            self.write_policy(policy)
            config.additional_config = {
                "tidegate": {"policy": str(self.policy_path), "statistics": statistics}
            }
        config.cache_config.num_gpu_blocks = blocks + 1  # and the null block
        config.scheduler_config.async_scheduling = depth > 1
        spec = FullAttentionSpec(
            block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=16, dtype=torch.float32
        )
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(BLOCK_TOKENS, sha256)
        self.scheduler = kind(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(blocks + 1, [], [KVCacheGroupSpec(["layer"], spec)]),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_TOKENS,
            hash_block_size=BLOCK_TOKENS,
            log_stats=True,
        )
        self.now = 100.0
        self.depth = depth
        self.step_seconds: Callable[[Step], float] | None = None
        """How long the engine takes for a step, told when its output is due; None: no time, and
        calls of ``step`` are ``STEP_SECONDS`` apart."""
        self.accepted_drafts = 0
        """Of each request's draft tokens in a step, at most."""
        self.requests: dict[str, Request] = {}
        self.first_token: dict[str, int] = {}
        """Number of calls of ``step`` until the call that scheduled the first token, by request."""
        self.calls = 0
        self.steps: list[Step] = []
        self._in_flight: deque[Step] = deque()
        self._preempted: list[str] = []
        self._watch_preemptions()
        if policy is not None:
            self.scheduler.tidegate._clock = lambda: self.now

    def write_policy(self, policy: dict[str, Any] | str) -> None:
        """Replace the policy file as a kubelet would: by renaming."""
        text = policy if isinstance(policy, str) else json.dumps(policy)
        fresh = self.policy_path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.policy_path)

    def _watch_preemptions(self) -> None:
        preempt = self.scheduler._preempt_request

        def noted(request: Any, *arguments: Any, **named: Any) -> None:
            self._preempted.append(request.request_id)
            preempt(request, *arguments, **named)

        self.scheduler._preempt_request = noted

    def add(
        self,
        name: str,
        prompt: int | list[int],
        output: int = 8,
        tier: str | None = None,
        *,
        enqueue: bool = True,
        **tags: Any,
    ) -> Request:
        """A request arrives (or is only made); a prompt given as a number is one that nobody
        shares."""
        number = len(self.requests)
        if isinstance(prompt, int):
            prompt = [(number * 7919 + i * 31) % 499 + 4 for i in range(prompt)]
        xargs = None
        if tier is not None:
            xargs = {"tidegate_tier": tier, "tidegate_tenant": tier, "tidegate_sequence": number}
            xargs |= {f"tidegate_{key}": value for key, value in tags.items()}
        request = Request(
            name,
            prompt,
            SamplingParams(max_tokens=output, ignore_eos=True, extra_args=xargs),
            None,
            block_hasher=self.hasher,
        )
        self.requests[name] = request
        if enqueue:
            self.scheduler.add_request(request)
        return request

    def abort(self, name: str) -> None:
        """Its client went away."""
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def step(self) -> Step:
        """One call of ``schedule()``, and the output of the oldest step in flight if it is due."""
        if self.step_seconds is None:
            self.now += STEP_SECONDS
        self.calls += 1
        self._preempted = []
        output = self.scheduler.schedule()
        step = Step(output=output, preempted=self._preempted)
        for name, tokens in output.num_scheduled_tokens.items():
            request = self.requests[name]
            before = request.num_computed_tokens - tokens
            # What is left beyond the last known token is this step's own place-holder.
            if request.num_tokens - before > 1:
                step.prefill[name] = tokens
            else:
                step.decodes.add(name)
            if not request.is_prefill_chunk:
                step.sampling.add(name)
                self.first_token.setdefault(name, self.calls)
        self.steps.append(step)
        self._in_flight.append(step)
        if len(self._in_flight) >= self.depth or not output.num_scheduled_tokens:
            self._return_oldest()
        return step

    def _return_oldest(self) -> None:
        step = self._in_flight.popleft()
        if self.step_seconds is not None:
            self.now += self.step_seconds(step)
        names = list(step.output.num_scheduled_tokens)
        drafted = step.output.scheduled_spec_decode_tokens
        sampled = [
            [self._token(name)] * (1 + min(len(drafted.get(name, ())), self.accepted_drafts))
            if name in step.sampling
            else []
            for name in names
        ]
        self.scheduler.update_from_output(
            step.output,
            ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled),
        )
        drafts = self.scheduler.num_spec_tokens
        if drafts and self.depth == 1:  # else the scheduler puts place-holders for them
            self.scheduler.update_draft_token_ids(
                DraftTokenIds(sorted(step.sampling), [[7] * drafts] * len(step.sampling))
            )

    def _token(self, name: str) -> int:
        return len(self.requests[name].output_token_ids) % 499 + 4

    def run(self, most: int = 2_000) -> int:
        """Until everything is done; how many steps that took."""
        begin = self.calls
        while any(not one.is_finished() for one in self.requests.values()):
            assert self.calls - begin < most, f"not done after {most} steps"
            self.step()
        while self._in_flight:
            self._return_oldest()
        return self.calls - begin

    @property
    def running(self) -> list[str]:
        """In vLLM's order."""
        return [request.request_id for request in self.scheduler.running]

    def blocks_of(self, prefix: str) -> int:
        """Blocks that running requests hold whose names begin so."""
        tables = self.scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks
        return sum(len(blocks) for name, blocks in tables.items() if name.startswith(prefix))

    @property
    def free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())
