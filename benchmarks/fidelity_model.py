"""The engine model given what real vLLM was given: step by step, and in virtual time.

`replay` hands each arrival to the model before the step that vLLM could first serve it in, and lays
the schedules side by side: it shows the rules alone, whatever the clock did. `predict` hands it the
arrival times and nothing else, so that rules and step times are judged together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

from fidelity_engine import EngineFlags, sequence_of, tier_of
from fidelity_log import Arrival, Notes, Outcome

from testbed.real_vllm import BLOCK_TOKENS
from tidegate.scheduling.contracts import Policy, loads
from tidegate.simulator.engine_model import (
    Engine,
    EngineConfig,
    EngineRequest,
    SchedulingPolicy,
    StepTimeModel,
)
from tidegate.simulator.simulation.plugin import PluginHook
from tidegate.simulator.simulation.request import SimRequest


@dataclass(frozen=True, slots=True)
class Frontend:
    """From a request's arrival in the API process until the scheduler can see it, in seconds."""

    base_seconds: float = 0.0
    per_token_seconds: float = 0.0

    def seconds(self, prompt_tokens: int) -> float:
        """Of a prompt of that many tokens."""
        return self.base_seconds + self.per_token_seconds * prompt_tokens


IN_THE_ENGINE = Frontend()
"""For arrivals that are counted from where the engine's process has them."""


class ModelEngine:
    """The model of the engine that these flags start, with the plug-in where they say so."""

    def __init__(self, flags: EngineFlags, step_time: StepTimeModel) -> None:
        config = EngineConfig(
            step_time=step_time,
            num_gpu_blocks=flags.num_gpu_blocks,
            block_size=BLOCK_TOKENS,
            max_num_seqs=flags.max_num_seqs,
            max_num_batched_tokens=flags.max_num_batched_tokens,
            scheduling_policy=SchedulingPolicy(flags.scheduling_policy),
            long_prefill_token_threshold=flags.long_prefill_token_threshold,
            watermark=flags.watermark,
        )
        self._hook: PluginHook | None = None
        if flags.plugin_policy is not None:
            self._hook = PluginHook(loads(Policy, flags.plugin_policy), config)
        self.engine = Engine(config, self._hook)

    def add(self, request: EngineRequest) -> None:
        """It arrives."""
        if self._hook is not None:
            tier = tier_of(request.request_id)
            seen = SimpleNamespace(
                id=request.request_id,
                tier=tier,
                tenant=tier,
                planned=SimpleNamespace(prompt_tokens=request.prompt_tokens),
                max_output_tokens=request.output_tokens_target,
            )
            sequence = sequence_of(request.request_id)
            self._hook.arrived(cast(SimRequest, seen), request, sequence, 0)
        self.engine.add(request)


def model_request(arrival: Arrival, key: int, shared_tokens: int = 0) -> EngineRequest:
    """The same request for the model; `key` is its own, `shared_tokens` begin every other too."""
    return EngineRequest(
        request_id=arrival.name,
        prompt_tokens=arrival.prompt_tokens,
        output_tokens_target=arrival.output_tokens,
        priority=arrival.priority,
        arrived_at=arrival.ranked_at,
        prompt_block_hashes=[
            hash((key if (index + 1) * BLOCK_TOKENS > shared_tokens else 0, 0, index))
            for index in range(arrival.prompt_tokens // BLOCK_TOKENS)
        ],
        content_key=key,
    )


def replay(
    notes: Notes, flags: EngineFlags, shared_tokens: Mapping[str, int] | None = None
) -> float:
    """Percent of vLLM's steps in which the model schedules and preempts exactly the same.

    `shared_tokens`, by name, are those that a prompt has in common with all others.
    """
    shared = shared_tokens or {}
    model = ModelEngine(flags, StepTimeModel(0.0, 0.0, 0.0, 1e-6))
    engine = model.engine
    arrivals = list(enumerate(notes.arrivals, start=1))
    alike = 0
    for number, step in enumerate(notes.steps):
        while arrivals and arrivals[0][1].before_step <= number:
            key, arrival = arrivals.pop(0)
            model.add(model_request(arrival, key, shared.get(arrival.name, 0)))
        if not engine.has_work:
            break
        result = engine.step(step.started_at)
        rows = {(r.request_id, tokens) for r, tokens in result.rows}
        victims = {r.request_id for r in result.preempted}
        alike += rows == {(row.name, row.tokens) for row in step.rows} and victims == {
            name for name, _ in step.preempted
        }
    return 100 * alike / len(notes.steps)


def predict(
    arrivals: Sequence[Arrival],
    flags: EngineFlags,
    step_time: StepTimeModel,
    frontend: Frontend = IN_THE_ENGINE,
) -> Outcome:
    """What the model makes of these arrivals, in virtual time."""
    model = ModelEngine(flags, step_time)
    engine = model.engine
    coming = sorted(
        (a.arrived_at + frontend.seconds(a.prompt_tokens), key, a)
        for key, a in enumerate(arrivals, start=1)
    )
    coming.reverse()
    now = coming[-1][0]
    requests: list[EngineRequest] = []
    arrived = {a.name: a.arrived_at for a in arrivals}
    while coming or engine.has_work:
        if not engine.has_work:
            now = max(now, coming[-1][0])
        while coming and coming[-1][0] <= now:
            _, key, arrival = coming.pop()
            requests.append(model_request(arrival, key))
            model.add(requests[-1])
        now = engine.step(now).ends_at
    return Outcome(
        first_token_seconds={
            r.request_id: r.first_token_at - arrived[r.request_id]
            for r in requests
            if r.first_token_at is not None
        },
        makespan_seconds=now - min(a.arrived_at for a in arrivals),
        generated_tokens=engine.totals.generation_tokens,
        preemptions=engine.totals.preemptions,
        recomputed_tokens=engine.totals.recomputed_tokens,
    )
