"""A recorder inside real vLLM: what its scheduler was given, decided, and how long each step took.

`vllm serve --scheduler-cls fidelity_recorder.RecordingScheduler`, with this folder on PYTHONPATH.
It is vLLM's own scheduler with notes taken around it; it changes no decision. One JSON line an
arrival, and one a step:

    {"arrived": 12.3, "reached": 12.31, "id": "cmpl-t0-7.1-0",
     "prompt": 900, "output": 40, "priority": 0}
    {"step": [start, end, processor_start, processor_end],
     "rows": [["cmpl-t0-7.1-0", computed, tokens]], "preempted": [["cmpl-t0-6.1-0", lost]]}

Times are wall-clock seconds of one clock: `arrived` is vLLM's own `arrival_time`, set in the API
process, `reached` when the request came into this one, `start` when the scheduler was asked, `end`
when the step's tokens had been taken in. The other two are the same moments on this thread's
processor clock, which stands still while something else has the core. `computed` is what a request
had in the KV cache before the step, `lost` what a victim had and lost.

It runs in vLLM's environment: standard library and vLLM only.
"""

import json
import os
import time

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

LOG = "TIDEGATE_FIDELITY_LOG"
"""Environment variable: the file that is appended to."""


_from_engine_core_request = Request.from_engine_core_request


def _note_reached(*args, **kwargs):
    request = _from_engine_core_request(*args, **kwargs)
    request.reached = time.time()
    return request


# Made by the thread that takes requests in, whatever the scheduler's is busy with.
Request.from_engine_core_request = _note_reached


class Recording:
    """Over a scheduler: each arrival and step is noted."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._notes = open(os.environ[LOG], "a", buffering=1)  # noqa: SIM115 - lives as long as this
        self._preempted = []
        self._pending = None

    def add_request(self, request):
        super().add_request(request)
        self._note(
            {
                "arrived": request.arrival_time,
                "reached": request.reached,
                "id": request.request_id,
                "prompt": request.num_prompt_tokens,
                "output": request.max_tokens,
                "priority": request.priority,
            }
        )

    def _preempt_request(self, request, *args, **kwargs):
        self._preempted.append([request.request_id, request.num_computed_tokens])
        return super()._preempt_request(request, *args, **kwargs)

    def schedule(self, *args, **kwargs):
        started = time.time(), time.thread_time()
        self._preempted = []
        output = super().schedule(*args, **kwargs)
        # What vLLM counts as computed includes this step already.
        rows = [
            [name, self.requests[name].num_computed_tokens - tokens, tokens]
            for name, tokens in output.num_scheduled_tokens.items()
        ]
        self._pending = started, rows, self._preempted
        return output

    def update_from_output(self, scheduler_output, model_runner_output):
        result = super().update_from_output(scheduler_output, model_runner_output)
        (start, processor_start), rows, preempted = self._pending
        if rows:
            step = [start, time.time(), processor_start, time.thread_time()]
            self._note({"step": step, "rows": rows, "preempted": preempted})
        return result

    def _note(self, note):
        self._notes.write(json.dumps(note, separators=(",", ":")) + "\n")


class RecordingScheduler(Recording, Scheduler):
    """vLLM's scheduler, noted."""
