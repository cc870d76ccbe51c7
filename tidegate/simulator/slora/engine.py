"""The loop of S-LoRA's router as VTC's artifact runs it, in virtual time.

Theory of operation, read from the artifact (Ying1123/VTC-artifact @ 192c2e20, slora/server/router:
manager, req_queue) and built anew:

* One batch decodes step by step. Prompts are prefilled in a batch of their own, during which all
  decodes stand still; a prefill gives the first token.
* Admission is tried when nothing runs; else after ten decode steps since the last prefill, and from
  then on before every step until one succeeds. The policy's order is followed until the first
  request that does not fit: nobody overtakes by being small.
* A request fits if the KV pool suffices to the end of all. With the batch sorted by remaining
  output, descending, the need when the k-th ends is ``remaining_k * k + sum of present_1..k``; its
  maximum must stay below the pool. (The artifact's clients name the output length, so the engine
  knows it; whether the policy looks at it is the policy's affair.)
* A prefill batch has at most ``max(pool / 6, 3072)`` prompt tokens; at most 1,000 requests run.

The batch is kept sorted by the step that gives the last token, which no decode changes, so a fit
test is one pass over it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidegate.simulator.service_gap import ServedRequest
from tidegate.simulator.slora.request import Job, Policy
from tidegate.simulator.slora.timing import Timing

STEPS_BETWEEN_ADMISSIONS = 10


@dataclass(frozen=True, slots=True)
class Limits:
    """What the artifact's server was started with."""

    pool_tokens: int = 10_000
    prefill_tokens: int = 3_072
    running_requests: int = 1_000


class Engine:
    """One run of a workload under a policy."""

    def __init__(self, timing: Timing, policy: Policy, limits: Limits | None = None) -> None:
        self._timing = timing
        self._policy = policy
        self._limits = limits or Limits()
        self._batch: list[Job] = []
        """By last step, descending."""
        self._kv_tokens = 0
        self._steps = 0
        self._since_prefill = 0
        self.now = 0.0

    def run(self, jobs: Sequence[Job]) -> list[ServedRequest]:
        """Serve all, in order of arrival; what their clients saw."""
        arriving = iter(jobs)
        following = next(arriving, None)
        while True:
            while following is not None and following.arrival <= self.now:
                self._policy.arrive(following, self.now)
                following = next(arriving, None)
            if self._batch and self._since_prefill < STEPS_BETWEEN_ADMISSIONS:
                self._decode()
            elif admitted := self._admit():
                self._prefill(admitted)
            elif self._batch:
                self._decode()
            elif following is not None:
                self.now = following.arrival
            elif (stuck := self._policy.head(self.now)) is not None:
                raise ValueError(f"request {stuck.number} never fits into the pool")
            else:
                break
        return [self._outcome(job) for job in jobs]

    def _admit(self) -> list[Job]:
        admitted: list[Job] = []
        tokens = 0
        limits = self._limits
        needs = [
            (job.last_step - self._steps - 1, job.prompt_tokens + self._generated(job))
            for job in self._batch
        ]
        while (job := self._policy.head(self.now)) is not None:
            tokens += job.prompt_tokens
            insort(needs, (job.output_tokens - 1, job.prompt_tokens + 1), key=_descending)
            if (
                tokens > limits.prefill_tokens
                or len(needs) > limits.running_requests
                or _most_tokens(needs) >= limits.pool_tokens
            ):
                break
            self._policy.admit(job, self.now)
            admitted.append(job)
        return admitted

    def _prefill(self, admitted: list[Job]) -> None:
        tokens = sum(job.prompt_tokens for job in admitted)
        self.now += self._timing.prefill_seconds(tokens, len(admitted))
        self._since_prefill = 0
        for job in admitted:
            job.first_token = self.now
            job.last_step = self._steps + job.output_tokens - 1
        self._end([job for job in admitted if job.output_tokens <= 1], admitted)
        for job in admitted:
            if job.finished is None:
                insort(self._batch, job, key=_by_last_step)
                self._kv_tokens += job.prompt_tokens + 1

    def _decode(self) -> None:
        batch = self._batch
        self._policy.decode(batch, self.now)
        self._kv_tokens += len(batch)
        self.now += self._timing.decode_seconds(len(batch), self._kv_tokens)
        self._steps += 1
        self._since_prefill += 1
        ended = []
        while batch and batch[-1].last_step <= self._steps:
            ended.append(batch.pop())
        for job in ended:
            self._kv_tokens -= job.prompt_tokens + job.output_tokens
        self._end(ended, [*batch, *ended] if ended else batch)

    def _end(self, ended: Sequence[Job], computed: Iterable[Job]) -> None:
        for job in ended:
            job.finished = self.now
        if ended:
            self._policy.finish(ended, computed, self.now)

    def _generated(self, job: Job) -> int:
        return job.output_tokens - (job.last_step - self._steps)

    def _outcome(self, job: Job) -> ServedRequest:
        late = self._timing.client_seconds
        return ServedRequest(
            job.tenant,
            job.prompt_tokens,
            job.output_tokens,
            job.arrival,
            None if job.first_token is None else job.first_token + late,
            None if job.finished is None else job.finished + late,
        )


def _most_tokens(needs: Iterable[tuple[int, int]]) -> int:
    """The most KV that (remaining, present) pairs, by remaining descending, come to hold."""
    most = present_sum = 0
    for rank, (remaining, present) in enumerate(needs, start=1):
        present_sum += present
        most = max(most, remaining * rank + present_sum)
    return most


def _descending(need: tuple[int, int]) -> int:
    return -need[0]


def _by_last_step(job: Job) -> int:
    return -job.last_step
