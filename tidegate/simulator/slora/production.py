"""The production ``tidegate.scheduling.Scheduler`` as a policy of the engine model.

It is driven as a sidecar drives it: submit, next, progress after every step, finish with the usage
that the engine reports. What it is told of a request's output is the most it may be, 1,024 tokens
for all as in the artifact's workload, never its length. The engine's fit test stands where the
sidecar has its gate: between peek and next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidegate.scheduling.contracts import (
    POLICY_VERSION,
    Fairness,
    FairnessUnit,
    ModelPolicy,
    Policy,
    QueueLimits,
    TenantPolicy,
    TierPolicy,
)
from tidegate.scheduling.request import Request, Usage
from tidegate.scheduling.scheduler import Scheduler
from tidegate.simulator.slora.request import Job

MAX_OUTPUT_TOKENS = 1_024
_NO_LIMIT = QueueLimits(max_requests=1_000_000, max_bytes=2**40, max_wait_seconds=86_400.0)


def one_tier(tenants: Iterable[str], quantum: int | None = None) -> Policy:
    """A policy of one tier, unit Tokens, with these tenants at equal weight."""
    tier = TierPolicy(name="all", fairness=Fairness(FairnessUnit.TOKENS, quantum), queue=_NO_LIMIT)
    return Policy(
        version=POLICY_VERSION,
        generation=1,
        pool="simulator/slora",
        model=ModelPolicy(name="llama-2-7b"),
        tiers=(tier,),
        tenants=tuple(TenantPolicy(name=name, tier=tier.name) for name in sorted(set(tenants))),
    )


class Production:
    """Hosts the scheduler."""

    def __init__(self, policy: Policy) -> None:
        self._scheduler = Scheduler(policy, 0.0)
        self._jobs: dict[str, Job] = {}
        self._unstarted: list[Job] = []

    def arrive(self, job: Job, now: float) -> bool:
        identifier = str(job.number)
        self._jobs[identifier] = job
        request = Request(identifier, job.tenant, job.prompt_tokens, MAX_OUTPUT_TOKENS)
        refusal = self._scheduler.submit(request, now)
        if refusal is not None:
            raise ValueError(f"request {identifier} was refused: {refusal}")
        return True

    def head(self, now: float) -> Job | None:
        request = self._scheduler.peek(now)
        return None if request is None else self._jobs[request.id]

    def admit(self, job: Job, now: float) -> None:
        request = self._scheduler.next(now)
        assert request is not None
        assert request.id == str(job.number)
        self._unstarted.append(job)

    def decode(self, running: Iterable[Job], now: float) -> None:
        self._start(now)
        for job in running:
            self._scheduler.progress(str(job.number), 1, now)

    def finish(self, ended: Sequence[Job], batch: Iterable[Job], now: float) -> None:
        self._start(now)
        for job in ended:
            usage = Usage(job.prompt_tokens, job.output_tokens)
            self._scheduler.finish(str(job.number), usage, now)

    def _start(self, now: float) -> None:
        """The prefill's own token of those just admitted."""
        for job in self._unstarted:
            self._scheduler.progress(str(job.number), 1, now)
        self._unstarted.clear()
