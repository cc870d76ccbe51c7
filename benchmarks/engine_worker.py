"""One real engine that runs what it is told, in vLLM's environment; for ``scripts/bench engine``.

``PYTHON benchmarks/engine_worker.py MODEL JSON``, with the repository's root on PYTHONPATH. JSON:
arguments of the engine. Each line of standard input is a run: a list of requests, for how long, and
``front``, a policy or null: with one, the sidecar's own scheduler and entrance stand before the
engine, as the sidecar has them, without HTTP. Each run is answered with one line that begins with
``@``: when each request had its first token, after how many steps T0's entered, tokens generated,
preemptions, and what these made the engine compute again.

Time is the processor time of this process's one thread, which stands still while something else has
the core: arrivals are due on it, first tokens are noted on it. An idle engine skips to the next
arrival. So a run says what this engine does with these arrivals, whatever else the machine does.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from engine_front import Front, listening, steps_told
from vllm import EngineArgs, LLMEngine, SamplingParams

VOCABULARY = range(8, 500)


class Clock:
    """Processor seconds of this thread, and what was skipped while idle."""

    def __init__(self) -> None:
        self._skipped = -time.thread_time()

    def now(self) -> float:
        return time.thread_time() + self._skipped

    def skip_to(self, moment: float) -> None:
        self._skipped += max(moment - self.now(), 0.0)


@dataclass(slots=True)
class Sent:
    """A request of a run: its tier and sizes, when it is due and what became of it."""

    name: str
    tier: str
    at: float
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0
    first_token: float | None = None
    ended: float | None = None
    seen: int = 0
    due_step: int = 0
    """The first that began after it was due."""
    waited_steps: int | None = None
    """From then on, before one computed any of it."""


class Worker:
    """One engine."""

    def __init__(self, model: str, arguments: dict[str, Any]) -> None:
        self._priorities: dict[str, int] = arguments.pop("priorities", {})
        plugin = arguments.get("additional_config", {}).get("tidegate")
        self._told = listening(plugin["statistics"]) if plugin else None
        self.engine = LLMEngine.from_engine_args(EngineArgs(model=model, **arguments))
        self._runs = 0
        self._preemptions = self._lost_tokens = self._scheduled_tokens = 0
        self._plan_seconds = 0.0
        self._steps = 0
        self._live: dict[str, Sent] = {}
        self._watch()

    @property
    def _scheduler(self) -> Any:
        return self.engine.engine_core.engine_core.scheduler

    def _watch(self) -> None:
        preempt, schedule = self._scheduler._preempt_request, self._scheduler.schedule

        def preempted(request: Any, *arguments: Any, **named: Any) -> None:
            self._preemptions += 1
            self._lost_tokens += request.num_computed_tokens
            preempt(request, *arguments, **named)

        def scheduled(*arguments: Any) -> Any:
            output = schedule(*arguments)
            self._scheduled_tokens += output.total_num_scheduled_tokens
            again = output.scheduled_cached_reqs
            for name, computed in zip(again.req_ids, again.num_computed_tokens, strict=True):
                if name in again.resumed_req_ids:  # found in the prefix cache
                    self._lost_tokens -= computed
            for new in output.scheduled_new_reqs:
                if (one := self._live.get(_given(new.req_id))) is not None:
                    one.waited_steps = self._steps - one.due_step
            return output

        if (steering := getattr(self._scheduler, "tidegate", None)) is not None:
            for name in ("begin", "end"):
                setattr(steering, name, self._timed(getattr(steering, name)))
        self._scheduler._preempt_request = preempted
        self._scheduler.schedule = scheduled

    def _timed(self, hook: Callable[..., None]) -> Callable[..., None]:
        def timed(*arguments: Any) -> None:
            began = time.thread_time()
            hook(*arguments)
            self._plan_seconds += time.thread_time() - began

        timed.__name__ = hook.__name__
        return timed

    def run(
        self, planned: list[Sent], seconds: float, policy: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Serve these for so long, then abort what is left."""
        self._runs += 1
        prompts = {one.name: _prompt(one) for one in planned}
        clock = Clock()
        front = Front(policy) if policy else None
        due, live = sorted(planned, key=lambda one: -one.at), {}
        self._preemptions = self._lost_tokens = self._scheduled_tokens = 0
        self._plan_seconds = 0.0
        generated = self._steps = 0
        self._live = live
        while (now := clock.now()) < seconds and (due or live):
            while due and due[-1].at <= now:
                one = due.pop()
                one.due_step = self._steps
                live[f"{one.name}.{self._runs}"] = one
                if front is None:
                    self._add(f"{one.name}.{self._runs}", one, prompts[one.name], self._steps)
                else:
                    front.submit(f"{one.name}.{self._runs}", one, now)
            if front is not None:
                for name, number, expected in front.dispatch(now):
                    self._add(name, live[name], prompts[live[name].name], number, expected)
            if not self.engine.has_unfinished_requests():
                clock.skip_to(due[-1].at if due else seconds)
                continue
            generated += self._step(clock, live, front)
            self._steps += 1
        told = {
            "seconds": clock.now(),
            "generated": generated,
            "preemptions": self._preemptions,
            "lost_tokens": self._lost_tokens,
            "scheduled_tokens": self._scheduled_tokens,
            "steps": self._steps,
            "plan_seconds": self._plan_seconds,
            "waited_steps": [one.waited_steps for one in planned if one.tier == "t0"],
            "first_token": {one.name: one.first_token for one in planned},
            "ended": sum(one.ended is not None for one in planned),
            "failures": self._failures(),
        }
        self.engine.abort_request(list(live))
        while self.engine.has_unfinished_requests():
            self.engine.step()
            self._steps_told()  # else the next run would take them for its own
        return told

    def _steps_told(self) -> list[bytes]:
        return [] if self._told is None else steps_told(self._told)

    def _step(self, clock: Clock, live: dict[str, Sent], front: Front | None) -> int:
        began = clock.now()
        outputs = self.engine.step()
        now, tokens = clock.now(), 0
        steps = self._steps_told()
        if front is not None:
            front.stepped(steps, now - began)
        for output in outputs:
            one = live[output.request_id]
            count = len(output.outputs[0].token_ids)
            tokens += count - one.seen
            if one.first_token is None and count:
                one.first_token = now
            if front is not None:
                front.progressed(output.request_id, count - one.seen, now)
            one.seen = count
            if output.finished:
                one.ended = now
                del live[output.request_id]
                if front is not None:
                    front.ended(output.request_id, one.prompt_tokens, count, now)
        return tokens

    def _add(self, name: str, one: Sent, prompt: list[int], number: int, expected: int = 0) -> None:
        tags = {
            "tidegate_tier": one.tier, "tidegate_tenant": one.tier, "tidegate_sequence": number,
            "tidegate_expected_tokens": expected,
        }  # fmt: skip
        params = SamplingParams(
            temperature=0.0, max_tokens=one.output_tokens, ignore_eos=True, extra_args=tags,
            detokenize=False,
        )  # fmt: skip
        priority = self._priorities.get(one.tier, 0)
        self.engine.add_request(name, {"prompt_token_ids": prompt}, params, priority=priority)

    def _failures(self) -> int:
        steering = getattr(self._scheduler, "tidegate", None)
        return steering.counters.failures.total() if steering is not None else 0


def _given(engine_name: str) -> str:
    """The name that a request was added by; vLLM appends a random part to it."""
    name, _, run = engine_name.rpartition(".")
    return f"{name}.{run.partition('-')[0]}"


def _prompt(one: Sent) -> list[int]:
    """The same for the same name; requests of a tier share their first tokens."""
    own = one.prompt_tokens - one.shared_tokens
    shared = random.Random(one.tier).choices(VOCABULARY, k=one.shared_tokens)
    return shared + random.Random(f"{one.tier} {one.name}").choices(VOCABULARY, k=own)


def main(model: str, arguments: str) -> None:
    """Serve runs until standard input ends."""
    worker = Worker(model, json.loads(arguments))
    print("@0", flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        planned = [Sent(**one) for one in told["requests"]]
        print("@" + json.dumps(worker.run(planned, told["seconds"], told["front"])), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
