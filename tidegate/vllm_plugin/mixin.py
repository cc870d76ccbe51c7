"""The hooks: methods of vLLM's scheduler that the plug-in extends, and nothing else.

Theory of operation: each calls vLLM's own method and, before or after it, the steering. What of
ours raises is caught, counted and logged; the step it happened in is stock from there on
(``Steering.failed``). What of vLLM's raises is vLLM's.

Invariant: nothing of ours runs between the two halves of one of vLLM's own operations.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.vllm_plugin.guard import PluginRefused
from tidegate.vllm_plugin.policy_file import PolicyFile
from tidegate.vllm_plugin.steering import Steering
from tidegate.vllm_plugin.step_reporter import StepReporter
from tidegate.vllm_plugin.vllm_types import (
    VllmModelOutput,
    VllmRequest,
    VllmScheduler,
    VllmSchedulerOutput,
)

if TYPE_CHECKING:
    _Scheduler = VllmScheduler
else:
    _Scheduler = object

T = TypeVar("T")


def paths(additional_config: object) -> tuple[Path, str | None]:
    """Where ``--additional-config`` says the policy is, and where step statistics go (None:
    nowhere); :class:`PluginRefused` if it does not say."""
    ours = additional_config.get("tidegate") if isinstance(additional_config, dict) else None
    ours = ours if isinstance(ours, dict) else {}
    path, statistics = ours.get("policy"), ours.get("statistics")
    if not isinstance(path, str) or not path or not isinstance(statistics, str | None):
        raise PluginRefused(
            "Tidegate's scheduler plug-in was not told where its policy is; start vLLM with "
            '--additional-config \'{"tidegate": {"policy": "PATH"}}\', a policy.json or the folder '
            'of its shards, and "statistics", if given, the path of a Unix datagram socket.'
        )
    return Path(path), statistics or None


class TidegateMixin(_Scheduler):
    """Over ``Scheduler`` or a class derived from it."""

    tidegate: Steering

    def _steer(self, steering: Steering) -> None:
        """At the end of ``__init__``, when vLLM's own state is complete."""
        self.tidegate = steering

    def _guarded(self, hook: Callable[..., T], *arguments: Any, otherwise: T) -> T:
        try:
            return hook(*arguments)
        except Exception as error:
            self.tidegate.failed(hook.__name__, error)
            return otherwise

    def tidegate_joins(self, request: VllmRequest, first: bool) -> None:
        """A request joined the waiting queue."""
        self._guarded(self.tidegate.roster.waits, request, first, otherwise=None)

    def tidegate_leaves(self, request: VllmRequest) -> None:
        """A request left the waiting queue."""
        self._guarded(self.tidegate.roster.waits_no_more, request, otherwise=None)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        self._guarded(self.tidegate.begin, otherwise=None)
        try:
            output = super().schedule(throttle_prefills)
        finally:
            self.waiting.close()
        self._guarded(self.tidegate.end, output, otherwise=None)
        return output

    def update_from_output(
        self, scheduler_output: VllmSchedulerOutput, model_runner_output: VllmModelOutput
    ) -> Any:
        self._guarded(self.tidegate.returned, scheduler_output, model_runner_output, otherwise=None)
        return super().update_from_output(scheduler_output, model_runner_output)

    def add_request(self, request: VllmRequest) -> None:
        if request.request_id not in self.requests:
            self._guarded(self.tidegate.arrived, request, otherwise=None)
        super().add_request(request)

    def shutdown(self) -> None:
        self._guarded(self.tidegate.close, otherwise=None)
        super().shutdown()

    def _reserve_prefill_lookahead(
        self, request: VllmRequest, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        tokens = num_new_tokens
        if request.request_id in self.tidegate.clipped:  # few are, and all are asked about
            tokens = self._guarded(
                self.tidegate.most_tokens,
                request,
                num_computed_tokens,
                num_new_tokens,
                otherwise=num_new_tokens,
            )
        return super()._reserve_prefill_lookahead(request, num_computed_tokens, tokens)

    def _handle_blocked_waiting_request(self, request: VllmRequest) -> bool:
        ready = super()._handle_blocked_waiting_request(request)
        return ready and self._guarded(self.tidegate.may_enter, request, otherwise=True)

    def _preempt_request(
        self, request: VllmRequest, timestamp: float, drop_stale_output: bool = False
    ) -> None:
        computed_tokens = request.num_computed_tokens
        super()._preempt_request(request, timestamp, drop_stale_output)
        self._guarded(self.tidegate.preempted, request, computed_tokens, otherwise=None)

    def _free_request(self, request: VllmRequest, delay_free_blocks: bool = False) -> Any:
        freed = super()._free_request(request, delay_free_blocks)
        self._guarded(self.tidegate.ended, request, otherwise=None)
        return freed

    def _free_request_blocks(self, request: VllmRequest) -> None:
        self._guarded(self.tidegate.giving_up, request, otherwise=None)
        super()._free_request_blocks(request)


def new_steering(scheduler: VllmScheduler) -> Steering:
    """What steers this scheduler."""
    policy, statistics = paths(scheduler.vllm_config.additional_config)
    reporter = StepReporter(statistics) if statistics else None
    return Steering(scheduler, PolicyFile(policy), reporter)
