"""The artifact's policies: first come first served, and the counters of tokens that VTC compares.

Theory of operation (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, and the
artifact's req_queue classes, built anew): each tenant has a counter of service, prompt tokens x 1
and output tokens x 2, charged as they are computed; the waiting tenant with the least goes next.

* *VTC*: a tenant whose queue was empty is lifted to the least counter of those that wait.
* *Least counter first* (LCF): VTC without the lift; idle time is credit without bound.
* *Oracle*: VTC that charges the whole output, truly known, at admission.
* *Predict*: VTC that charges at admission what it expects the output to be, a moving average over
  the tenant's ended requests with a window of five, starting at 0.

``charges_on_finish`` repeats a quirk of the published code: whenever any request of the batch ends,
the step's charge is made once more for the whole batch. The published runs were made with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from tidegate.simulator.service_gap import INPUT_PRICE, OUTPUT_PRICE
from tidegate.simulator.slora.request import Job


class FirstComeFirstServed:
    """S-LoRA's own order."""

    def __init__(self) -> None:
        self._waiting: deque[Job] = deque()

    def arrive(self, job: Job, now: float) -> bool:
        self._waiting.append(job)
        return True

    def head(self, now: float) -> Job | None:
        return self._waiting[0] if self._waiting else None

    def admit(self, job: Job, now: float) -> None:
        self._waiting.popleft()

    def decode(self, running: Iterable[Job], now: float) -> None:
        pass

    def finish(self, ended: Sequence[Job], batch: Iterable[Job], now: float) -> None:
        pass


class RequestsPerMinute(FirstComeFirstServed):
    """First come first served behind a limit: refused is who was admitted ``limit`` times within
    the last 60 s; what was refused does not count."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._admitted: dict[str, deque[float]] = {}

    def arrive(self, job: Job, now: float) -> bool:
        recent = self._admitted.setdefault(job.tenant, deque())
        while recent and now - recent[0] > 60:
            recent.popleft()
        if len(recent) >= self._limit:
            return False
        recent.append(now)
        return super().arrive(job, now)


class LeastCounterFirst:
    """Counters without a lift; the base of the others."""

    def __init__(self, charges_on_finish: bool = True) -> None:
        self.counters: dict[str, float] = {}
        self._queues: dict[str, deque[Job]] = {}
        self._charges_on_finish = charges_on_finish

    def arrive(self, job: Job, now: float) -> bool:
        queue = self._queues.setdefault(job.tenant, deque())
        self.counters.setdefault(job.tenant, 0.0)
        if not queue:
            self._begins_to_wait(job.tenant)
        queue.append(job)
        return True

    def head(self, now: float) -> Job | None:
        tenants = [tenant for tenant, queue in self._queues.items() if queue]
        if not tenants:
            return None
        return self._queues[min(tenants, key=self.counters.__getitem__)][0]

    def admit(self, job: Job, now: float) -> None:
        self._queues[job.tenant].popleft()
        self.counters[job.tenant] += INPUT_PRICE * job.prompt_tokens

    def decode(self, running: Iterable[Job], now: float) -> None:
        for job in running:
            self.counters[job.tenant] += OUTPUT_PRICE

    def finish(self, ended: Sequence[Job], batch: Iterable[Job], now: float) -> None:
        if self._charges_on_finish:
            self.decode(batch, now)

    def _begins_to_wait(self, tenant: str) -> None:
        pass


class VirtualTokenCounter(LeastCounterFirst):
    """VTC."""

    def _begins_to_wait(self, tenant: str) -> None:
        waiting = [self.counters[other] for other, queue in self._queues.items() if queue]
        if waiting:
            self.counters[tenant] = max(self.counters[tenant], min(waiting))


class OracleTokenCounter(VirtualTokenCounter):
    """VTC that knows every output length."""

    def admit(self, job: Job, now: float) -> None:
        super().admit(job, now)
        self.counters[job.tenant] += OUTPUT_PRICE * job.output_tokens

    def decode(self, running: Iterable[Job], now: float) -> None:
        pass


class PredictingTokenCounter(VirtualTokenCounter):
    """VTC with the artifact's predictor."""

    WINDOW = 5

    def __init__(self, charges_on_finish: bool = True) -> None:
        super().__init__(charges_on_finish)
        self._expected: dict[str, float] = {}
        self._charged: dict[Job, float] = {}
        self._produced: dict[Job, int] = {}

    def admit(self, job: Job, now: float) -> None:
        super().admit(job, now)
        expected = self._expected.get(job.tenant, 0.0)
        self.counters[job.tenant] += OUTPUT_PRICE * expected
        self._charged[job] = expected
        self._produced[job] = 1  # by the prefill

    def decode(self, running: Iterable[Job], now: float) -> None:
        for job in running:
            if self._produced[job] > self._charged[job]:
                self.counters[job.tenant] += OUTPUT_PRICE
            self._produced[job] += 1

    def finish(self, ended: Sequence[Job], batch: Iterable[Job], now: float) -> None:
        if self._charges_on_finish:
            for job in batch:
                if self._produced[job] > self._charged[job]:
                    self.counters[job.tenant] += OUTPUT_PRICE
        for job in ended:
            charged = self._charged.pop(job)
            del self._produced[job]
            unused = max(0.0, charged - job.output_tokens)
            self.counters[job.tenant] -= OUTPUT_PRICE * unused
            old = self._expected.get(job.tenant, 0.0)
            self._expected[job.tenant] = (
                (old * (self.WINDOW - 1) + job.output_tokens) / self.WINDOW
                if old
                else float(job.output_tokens)
            )
