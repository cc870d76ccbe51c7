"""The policies by name: those of the artifact, variants of fair queueing, and ours.

``ARTIFACT`` are the published runs, each with its file and the policy as it was published (charges
on finish included); ``CONTESTANTS`` are compared with each other in one ensemble, without that
quirk. Each entry makes a new policy for a run's tenants.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from tidegate.simulator.slora.counters import (
    FirstComeFirstServed,
    LeastCounterFirst,
    OracleTokenCounter,
    PredictingTokenCounter,
    RequestsPerMinute,
    VirtualTokenCounter,
)
from tidegate.simulator.slora.fair_queueing import (
    DeficitRing,
    FairQueueing,
    MeanOfLast,
    MovingAverage,
    NoPrediction,
    Oracle,
)
from tidegate.simulator.slora.production import Production, one_tier
from tidegate.simulator.slora.request import Policy
from tidegate.simulator.start_time_fair_queueing import StartTimeFairQueueing

Maker = Callable[[Collection[str]], Policy]

ARTIFACT: dict[str, tuple[str, Maker]] = {
    "FCFS": ("real_FCFS.jsonl", lambda _: FirstComeFirstServed()),
    "LCF": ("real_LCF.jsonl", lambda _: LeastCounterFirst()),
    "VTC": ("real_VTC.jsonl", lambda _: VirtualTokenCounter()),
    "VTC oracle": ("real_VTC_oracle.jsonl", lambda _: OracleTokenCounter()),
    "VTC predict": ("real_VTC_predict.jsonl", lambda _: PredictingTokenCounter()),
    "RPM 5": ("real_rpm5.jsonl", lambda _: RequestsPerMinute(5)),
    "RPM 10": ("real_rpm10.jsonl", lambda _: RequestsPerMinute(10)),
    "RPM 15": ("real_rpm15.jsonl", lambda _: RequestsPerMinute(15)),
    "RPM 20": ("real_rpm20.jsonl", lambda _: RequestsPerMinute(20)),
    "RPM 30": ("real_rpm30.jsonl", lambda _: RequestsPerMinute(30)),
    "VTC, 8 equal": ("VTC_overload-multi.jsonl", lambda _: VirtualTokenCounter()),
    "VTC, 4 equal": ("VTC_overload-weighted.jsonl", lambda _: VirtualTokenCounter()),
}

OURS = "Tidegate"

CONTESTANTS: dict[str, Maker] = {
    "FCFS": lambda _: FirstComeFirstServed(),
    "VTC": lambda _: VirtualTokenCounter(charges_on_finish=False),
    "VTC oracle": lambda _: OracleTokenCounter(),
    "SFQ streaming": lambda _: FairQueueing(StartTimeFairQueueing(), NoPrediction()),
    "SFQ at end": lambda _: FairQueueing(
        StartTimeFairQueueing(), NoPrediction(), while_streaming=False
    ),
    "SFQ EMA-5": lambda _: FairQueueing(StartTimeFairQueueing(), MovingAverage()),
    "SFQ mean-32": lambda _: FairQueueing(StartTimeFairQueueing(), MeanOfLast()),
    "SFQ mean-32, credit": lambda _: FairQueueing(StartTimeFairQueueing(2_000), MeanOfLast()),
    "SFQ true costs": lambda _: FairQueueing(StartTimeFairQueueing(), Oracle()),
    "DRR 500 streaming": lambda _: FairQueueing(DeficitRing(500), NoPrediction()),
    "DRR 2000 streaming": lambda _: FairQueueing(DeficitRing(2_000), NoPrediction()),
    "DRR 500 mean-32": lambda _: FairQueueing(DeficitRing(500), MeanOfLast()),
    "DRR 500 true costs": lambda _: FairQueueing(DeficitRing(500), Oracle()),
    OURS: lambda tenants: Production(one_tier(tenants)),
}
