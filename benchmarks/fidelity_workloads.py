"""What the fidelity check sends: a probe to fit constants on, and held-out runs to judge them by.

The probe walks through the kinds of steps one by one: single requests on an idle engine, prompts of
each length, 1 to all seats decoding at short and long context, prompts that arrive among decodes.
A round of it costs some 10 s; the long contexts differ from round to round.
The held-out runs are mixes that it never saw, each of three tiers by vLLM's priority and one of
them under the plug-in; their
arrivals come faster than the engine serves them, so that there is a queue whose order matters. How
many requests and how fast is set from the probe's constants, so that the check is as hard on a slow
machine as on a fast one; what is measured is not.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fidelity_engine import EngineFlags, Planned

SEATS = 24
WIDE = EngineFlags(max_num_seqs=SEATS, max_num_batched_tokens=2048, num_gpu_blocks=4096)
TIGHT = EngineFlags(max_num_seqs=SEATS, max_num_batched_tokens=2048, num_gpu_blocks=160)
CHUNKED = EngineFlags(
    max_num_seqs=SEATS, max_num_batched_tokens=256, num_gpu_blocks=4096, scheduling_policy="fcfs"
)
TIERS = ("t0", "t1", "t2")
PLUGIN_POLICY = json.dumps(
    {
        "version": 1,
        "generation": 1,
        "pool": "bench/pool",
        "model": {"name": "tiny"},
        "tiers": [
            {"name": "t0", "priority": 200},
            {"name": "t1", "priority": 100},
            {"name": "t2", "priority": 0, "preemption": {"evictable": True}},
        ],
        "kv_pools": [{"name": "protected", "tiers": ["t0"], "percent": 30}],
    }
)
STEERED = replace(TIGHT, plugin_policy=PLUGIN_POLICY)


@dataclass(frozen=True, slots=True)
class TierShape:
    """A tier's share of the requests, and its prompt and output tokens (uniform)."""

    share: float
    prompt: tuple[int, int]
    output: tuple[int, int]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A run that is predicted and measured. `overload` is work offered over work served."""

    name: str
    flags: EngineFlags
    tiers: tuple[TierShape, TierShape, TierShape]
    overload: float

    def requests(self, count: int, seed: int) -> list[Planned]:
        """`count` requests, all at the start."""
        draw = random.Random(f"{self.name} {seed}")
        planned = []
        for number in range(count):
            tier = draw.choices(range(3), [t.share for t in self.tiers])[0]
            shape = self.tiers[tier]
            prompt, output = draw.randint(*shape.prompt), draw.randint(*shape.output)
            planned.append(Planned(f"{TIERS[tier]}-{number}", 0.0, prompt, output, priority=tier))
        return planned

    def spread(
        self, planned: Sequence[Planned], service_seconds: float, seed: int
    ) -> list[Planned]:
        """The same as Poisson arrivals over a part of the time that serving them takes."""
        draw = random.Random(f"{self.name} {seed} arrivals")
        window = service_seconds / self.overload
        times = sorted(draw.uniform(0.0, window) for _ in planned)
        return [replace(one, at=at) for one, at in zip(planned, times, strict=True)]


HELD_OUT = (
    HeldOut(
        "mixed tiers",
        WIDE,
        (
            TierShape(0.40, (40, 300), (12, 40)),
            TierShape(0.35, (300, 1500), (20, 60)),
            TierShape(0.25, (1500, 6000), (30, 80)),
        ),
        overload=1.5,
    ),
    HeldOut(
        "preemption",
        TIGHT,
        (
            TierShape(0.35, (40, 200), (20, 60)),
            TierShape(0.35, (100, 500), (60, 160)),
            TierShape(0.30, (300, 900), (150, 400)),
        ),
        overload=1.5,
    ),
    HeldOut(
        "plug-in",
        STEERED,
        (
            TierShape(0.35, (40, 200), (20, 60)),
            TierShape(0.35, (100, 500), (60, 160)),
            TierShape(0.30, (300, 900), (150, 400)),
        ),
        overload=1.5,
    ),
    HeldOut(
        "chunked prefill",
        CHUNKED,
        (
            TierShape(0.45, (40, 250), (12, 40)),
            TierShape(0.35, (250, 1200), (20, 60)),
            TierShape(0.20, (2000, 7000), (20, 60)),
        ),
        overload=1.5,
    ),
)


_LONG = ((24, 3000), (10, 6000), (16, 1800))


def probe_stages(seed: int) -> list[list[Planned]]:
    """A round of the probe: runs, each from an idle engine to an idle engine."""
    draw = random.Random(f"probe {seed}")

    def shape(name: str, at: float, prompt: int, output: int) -> Planned:
        return Planned(f"probe-{name}", at, prompt, output)

    alone = [
        [shape(f"alone{number}", 0.0, prompt, 8)]
        for number, prompt in enumerate((16, 60, 150, 400, 900, 1600, 3000, 5000, 8000))
    ]
    batches = [
        [shape(f"batch{rows}x{prompt}-{number}", 0.0, prompt, 40) for number in range(rows)]
        for rows, prompt in (
            (2, 40),
            (4, 900),
            (8, 100),
            (12, 600),
            (16, 30),
            (24, 300),
            (24, 40),
            _LONG[seed % len(_LONG)],
        )
    ]
    among = [
        [
            *(shape(f"among{rows}-{number}", 0.0, 100, 70) for number in range(rows)),
            *(
                shape(f"late{rows}-{number}", 0.03 * number, draw.choice((60, 250, 700, 2500)), 4)
                for number in range(8)
            ),
        ]
        for rows in (3, 9, 15)
    ]
    return [*alone, *batches, *among]
