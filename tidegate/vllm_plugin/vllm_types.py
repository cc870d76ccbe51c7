"""What the plug-in uses of vLLM: names and signatures, and nothing else.

vLLM says that its scheduler's interface is not public, so what we rely on is written down once. The
type checker reads these classes in the place of vLLM's, which Tidegate's own environment does not
have; ``guard`` compares them with the real ones before the engine serves. At run time nothing is
derived from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class VllmSamplingParams:
    """``vllm.SamplingParams``."""

    extra_args: Mapping[str, Any] | None
    """The request body's ``vllm_xargs``."""


class VllmRequest:
    """``vllm.v1.request.Request``: one engine sequence."""

    request_id: str
    status: Any
    sampling_params: VllmSamplingParams | None
    """None: a pooling request."""
    max_tokens: int
    num_prompt_tokens: int
    num_tokens: int
    _all_token_ids: list[int]
    """Their number is ``num_tokens``, which is asked for often enough to go without the call. One
    list for the request's life."""
    num_computed_tokens: int
    num_output_placeholders: int
    """Tokens of steps in flight (async scheduling)."""
    num_stale_output_tokens: int
    """In flight when it was preempted: it may not resume before they have come back."""
    drop_stale_output: bool
    num_preemptions: int
    spec_token_ids: Sequence[int]
    block_hashes: list[Any]


class VllmBlock:
    """``vllm.v1.core.kv_cache_utils.KVCacheBlock``."""

    block_id: int
    ref_cnt: int
    is_null: bool
    block_hash: Any


class VllmBlockPool:
    """``vllm.v1.core.block_pool.BlockPool``."""

    num_gpu_blocks: int
    metrics_collector: Any

    def get_num_free_blocks(self) -> int:
        """Allocatable now, cached ones among them."""
        raise NotImplementedError

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Un-hash: the content of these blocks is found no more."""
        raise NotImplementedError


class VllmManager:
    """``SingleTypeKVCacheManager``: the block tables of one KV cache group."""

    req_to_blocks: Mapping[str, list[VllmBlock]]


class VllmCoordinator:
    """``KVCacheCoordinator``."""

    single_type_managers: Sequence[VllmManager]

    def find_longest_cache_hit(
        self, block_hashes: list[Any], max_cache_hit_length: int
    ) -> tuple[Sequence[Sequence[VllmBlock]], int, int]:
        """Blocks by group, and the tokens that they hold."""
        raise NotImplementedError


class VllmKvCacheManager:
    """``vllm.v1.core.kv_cache_manager.KVCacheManager``."""

    block_pool: VllmBlockPool
    coordinator: VllmCoordinator

    def prefix_cache_lookup_enabled(self, request: VllmRequest) -> bool:
        """Whether the request may hit the prefix cache."""
        raise NotImplementedError

    def evict_blocks(self, block_ids: set[int]) -> None:
        """As the block pool's."""
        raise NotImplementedError


class VllmQueue:
    """``FCFSRequestQueue``: waiting requests in stock order."""

    def __len__(self) -> int:
        raise NotImplementedError

    def __iter__(self) -> Any:
        raise NotImplementedError

    def __bool__(self) -> bool:
        raise NotImplementedError

    def add_request(self, request: VllmRequest) -> None:
        """To the end."""
        raise NotImplementedError

    def pop_request(self) -> VllmRequest:
        """What ``peek_request`` has shown."""
        raise NotImplementedError

    def peek_request(self) -> VllmRequest:
        """The next."""
        raise NotImplementedError

    def prepend_request(self, request: VllmRequest) -> None:
        """To the front."""
        raise NotImplementedError

    def prepend_requests(self, requests: Iterable[VllmRequest]) -> None:
        """To the front, each before the one before it."""
        raise NotImplementedError

    def remove_request(self, request: VllmRequest) -> None:
        """ValueError: it is not there."""
        raise NotImplementedError

    def remove_requests(self, requests: Iterable[VllmRequest]) -> None:
        """Those of them that are there."""
        raise NotImplementedError


class VllmNewRequest:
    """``NewRequestData``: a request scheduled for the first time."""

    req_id: str


class VllmCachedRequests:
    """``CachedRequestData``: those scheduled before."""

    resumed_req_ids: set[str]
    """After a preemption."""


class VllmSchedulerOutput:
    """``vllm.v1.core.sched.output.SchedulerOutput``: what a step computes."""

    scheduled_new_reqs: Sequence[VllmNewRequest]
    scheduled_cached_reqs: VllmCachedRequests
    num_scheduled_tokens: Mapping[str, int]
    scheduled_spec_decode_tokens: Mapping[str, Sequence[int]]


class VllmModelOutput:
    """``vllm.v1.outputs.ModelRunnerOutput``: what became of it."""

    req_id_to_index: Mapping[str, int]
    sampled_token_ids: Sequence[Sequence[int]]
    """By index; empty for who computed a part of its prompt."""


class VllmScheduler:
    """``vllm.v1.core.sched.scheduler.Scheduler``, and its async variant."""

    vllm_config: Any
    scheduler_config: Any
    policy: Any
    block_size: int
    requests: dict[str, VllmRequest]
    waiting: Any
    deferred_waiting: set[VllmRequest]
    running: list[VllmRequest]
    pause_state: Any
    max_num_running_reqs: int
    max_num_active_reqs: int
    max_num_scheduled_tokens: int
    num_spec_tokens: int
    requires_kv_delivery: bool
    deferred_frees: Iterable[tuple[int, Sequence[VllmBlock]]]
    kv_cache_manager: VllmKvCacheManager

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """One step."""
        raise NotImplementedError

    def update_from_output(
        self, scheduler_output: VllmSchedulerOutput, model_runner_output: VllmModelOutput
    ) -> Any:
        """The output of a step is back."""
        raise NotImplementedError

    def add_request(self, request: VllmRequest) -> None:
        """A request reaches the engine."""
        raise NotImplementedError

    def shutdown(self) -> None:
        """The engine ends."""
        raise NotImplementedError

    def _reserve_prefill_lookahead(
        self, request: VllmRequest, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        """The last word on one request's tokens in a step."""
        raise NotImplementedError

    def _handle_blocked_waiting_request(self, request: VllmRequest) -> bool:
        """Whether a waiting request may be considered; False: the next one is."""
        raise NotImplementedError

    def _preempt_request(
        self, request: VllmRequest, timestamp: float, drop_stale_output: bool = False
    ) -> None:
        """Back into ``waiting``; the caller has taken it out of ``running``."""
        raise NotImplementedError

    def _free_request(self, request: VllmRequest, delay_free_blocks: bool = False) -> Any:
        """It has ended."""
        raise NotImplementedError

    def _free_request_blocks(self, request: VllmRequest) -> None:
        """It gives its blocks up: ended or preempted."""
        raise NotImplementedError
