"""The systems that `tidegate simulate` compares, by name, on the same GPUs.

A pool is one engine, or one for each of its engine groups, which serves the tiers that are at home
there; each has the calibration that was asked for.

``static`` stands for engines apart: all ways to serve the tiers on two engines of half the GPUs are
tried for a part of the time, and the one with the most goodput is run in full. Each of the
two has the flags of the one engine. Only an engine whose half is known can be split.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tidegate.cli.errors import CommandError
from tidegate.cli.simulate_workload import Load
from tidegate.scheduling.contracts import Policy, SchedulingMode, decode
from tidegate.simulator.engine_model import CALIBRATIONS, Calibration
from tidegate.simulator.report.build import Promises, Run, Setting, policy_run
from tidegate.simulator.simulation import node_policy
from tidegate.simulator.simulation.run import Progress
from tidegate.simulator.simulation.system import (
    DEFAULT_BLOCK_SIZE,
    EngineGroup,
    Scheduling,
    System,
    simulate,
)

STATIC = "static"
SCHEDULING: dict[str, Scheduling] = {
    "tidegate": Scheduling.TIDEGATE,
    "sidecar": Scheduling.SIDECAR,
    "fcfs": Scheduling.FCFS,
    "priority": Scheduling.PRIORITY,
    "vtc": Scheduling.VTC,
    "source-000": Scheduling.SOURCE_000,
}
POLICIES = (*SCHEDULING, STATIC)
_RESERVE = ("tidegate", "sidecar")
"""Those that keep what a tier reserves."""
_STOCK = ("fcfs", "priority", STATIC)
"""Those with nothing but vLLM."""
_PROBE = "probe of vLLM"
_HALVES = {"h100_70b_tp8": "h100_70b_tp4"}
_MOST_SPLIT_TIERS = 8
"""Of n tiers there are 2^(n-1) - 1 splits, and each is tried."""
_TRIAL_SHARE = 0.25
_TRIAL_SECONDS = 120.0
_TENSOR = re.compile(r"_tp([1-9]\d{0,3})$")
_DEFAULT_SEQS, _DEFAULT_TOKENS = 256, 8_192
_SHORTEST_STEP_SECONDS = 1e-5
"""Of an engine that can be simulated: with steps of no length virtual time stands still."""
_MOST_KV_TOKENS = 100_000_000

Watch = Callable[[str, float], Progress]
"""Called with what is simulated and for how long; the progress of it goes to what it returns."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """One engine's model and GPUs."""

    name: str
    calibration: Calibration
    gpus: int

    @property
    def measured(self) -> bool:
        """By the probe of ``scripts/bench fidelity``, whose mark its sources bear."""
        return any(source.startswith(_PROBE) for source in self.calibration.sources.values())

    @property
    def half(self) -> Calibration | None:
        """What half of its GPUs make; None: not known."""
        if self.calibration is not CALIBRATIONS.get(self.name) or self.gpus % 2:
            return None
        return CALIBRATIONS.get(_HALVES.get(self.name, ""))


def hardware(given: str, gpus: int | None) -> Hardware:
    """A calibration by name, or from a JSON file as ``scripts/bench fidelity`` writes it."""
    name, calibration = given, CALIBRATIONS.get(given)
    if calibration is None:
        path = Path(given)
        if not path.exists() and not path.suffix:
            raise CommandError(
                f"--calibration: {given} is no file, and the built-in ones are "
                f"{', '.join(CALIBRATIONS)}",
                exit_code=2,
            )
        name, calibration = path.stem, _read(path)
    tensor = _TENSOR.search(name)
    return Hardware(name, calibration, gpus or (int(tensor.group(1)) if tensor else 1))


def _read(path: Path) -> Calibration:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"--calibration: {path}: {error.strerror}", exit_code=2) from None
    except (ValueError, RecursionError) as error:
        raise CommandError(f"--calibration: {path}: not JSON: {error}", exit_code=2) from None
    try:
        calibration = decode(Calibration, document, "calibration")
    except ValueError as error:
        raise CommandError(f"--calibration: {path}: {error}", exit_code=2) from None
    if not DEFAULT_BLOCK_SIZE <= calibration.kv_capacity_tokens <= _MOST_KV_TOKENS:
        raise CommandError(
            f"--calibration: {path}: kv_capacity_tokens must be {DEFAULT_BLOCK_SIZE} to "
            f"{_MOST_KV_TOKENS}",
            exit_code=2,
        )
    if calibration.step_time.seconds(1) < _SHORTEST_STEP_SECONDS:
        raise CommandError(
            f"--calibration: {path}: a step of one token must take {_SHORTEST_STEP_SECONDS:g} s "
            "or more",
            exit_code=2,
        )
    return calibration


def check_policies(names: Sequence[str], engine: Hardware) -> None:
    """:class:`CommandError` where one is unknown or cannot be built on this engine."""
    for name in names:
        if name not in POLICIES:
            raise CommandError(
                f"{name!r} is no policy; there are {', '.join(POLICIES)}", exit_code=2
            )
    if STATIC in names and engine.half is None:
        raise CommandError(
            f"static: half of {engine.name} is not known; it is of {', '.join(_HALVES)} with an "
            "even number of GPUs",
            exit_code=2,
        )


def check_split(names: Sequence[str], load: Load) -> None:
    """:class:`CommandError` where static has nothing to split, or more ways than can be tried."""
    groups = [group.name for group in load.policy.engine_groups]
    if STATIC in names and len(groups) > 1:
        raise CommandError(
            f"static: the pool's engines are split already, into {', '.join(groups)}", exit_code=2
        )
    tiers = len(load.make().tiers)
    if STATIC in names and not 2 <= tiers <= _MOST_SPLIT_TIERS:
        raise CommandError(
            f"static: the workload's tenants are in {tiers} tiers; 2 to {_MOST_SPLIT_TIERS} can be "
            "split",
            exit_code=2,
        )


def check_limits(policy: Policy) -> None:
    """:class:`CommandError` where no engine would start with the policy's limits."""
    for each in (policy, *(policy.in_group(group.name) for group in policy.engine_groups)):
        limits = _limited(each).engine
        seqs, tokens = limits.max_num_seqs or 0, limits.max_num_batched_tokens or 0
        if tokens < seqs:
            raise CommandError(
                f"the engine's max_num_batched_tokens ({tokens}) must be at least its max_num_seqs "
                f"({seqs}), or vLLM does not start",
                exit_code=2,
            )


def homes(policy: Policy) -> dict[str, frozenset[str]]:
    """Whose requests each engine group is sent; tiers that are at home in all: the first's."""
    groups = policy.engine_groups
    if not groups:
        return {}
    listed = {tier for group in groups for tier in group.tiers}
    others = {tier.name for tier in policy.tiers} - listed
    return {
        group.name: frozenset(group.tiers) | (others if group is groups[0] else frozenset())
        for group in groups
    }


def run(name: str, load: Load, engine: Hardware, watch: Watch) -> Run:
    """Simulate a policy, in full."""
    system = _best_split(load, engine, watch) if name == STATIC else _own(name, load, engine)
    return _run(name, system, load, engine, watch(system.name, load.duration_seconds))


def _run(name: str, system: System, load: Load, engine: Hardware, progress: Progress) -> Run:
    result = simulate(
        system,
        load.make(),
        seed=load.seed,
        duration_seconds=load.duration_seconds,
        warmup_seconds=load.warmup_seconds,
        progress=progress,
    )
    reserved = _reserved(system, load.policy) if name in _RESERVE else {}
    promises = replace(Promises.of(load.policy), reserved_percent=reserved)
    first = system.groups[0]
    return Run(
        result,
        promises,
        first.calibration.step_time,
        engines=len(system.groups),
        engine_measured=engine.measured and first.calibration is engine.calibration,
        stock_engine=name in _STOCK,
    )


def _reserved(system: System, policy: Policy) -> dict[str, float]:
    """Percent of all GPUs that is reserved for each tier: of those of its home."""
    gpus_of = {
        tier.name: sum(
            group.gpus for group in system.groups if group.tiers is None or tier.name in group.tiers
        )
        for tier in policy.tiers
    }
    return {
        tier.name: tier.reserved_percent * gpus_of[tier.name] / system.gpus for tier in policy.tiers
    }


def _own(name: str, load: Load, engine: Hardware) -> System:
    """The pool's own engines."""
    tiers_of: Mapping[str, frozenset[str] | None] = homes(load.policy) or {"engine": None}
    groups = [
        EngineGroup(
            name=group,
            calibration=engine.calibration,
            gpus=engine.gpus,
            policy=_limited(load.policy.in_group(group)),
            scheduling=SCHEDULING[name],
            tiers=tiers,
        )
        for group, tiers in tiers_of.items()
    ]
    return System(name, tuple(map(_flagged, groups)))


def _flagged(group: EngineGroup) -> EngineGroup:
    """With the flags that its policy names, or vLLM's own."""
    limits = group.policy.engine
    return replace(
        group,
        max_num_seqs=limits.max_num_seqs or _DEFAULT_SEQS,
        max_num_batched_tokens=limits.max_num_batched_tokens or _DEFAULT_TOKENS,
        block_size=DEFAULT_BLOCK_SIZE,
    )


def _limited(policy: Policy) -> Policy:
    """Switched on, with the limits that the engine runs with where it names none."""
    limits = policy.engine
    return replace(
        policy,
        scheduling_mode=SchedulingMode.TIDEGATE,
        engine=replace(
            limits,
            max_num_seqs=limits.max_num_seqs or _DEFAULT_SEQS,
            max_num_batched_tokens=limits.max_num_batched_tokens or _DEFAULT_TOKENS,
        ),
    )


def _best_split(load: Load, engine: Hardware, watch: Watch) -> System:
    tiers = load.make().tiers
    ways = node_policy.splits_in_two(tiers)
    systems = [_split(load, engine, way) for way in ways]
    if len(systems) == 1:
        return systems[0]
    measured = load.measured_until - load.warmup_seconds
    seconds = min(measured, max(_TRIAL_SECONDS, _TRIAL_SHARE * measured))
    trial = replace(
        load,
        measured_until=load.warmup_seconds + seconds,
        duration_seconds=load.duration_seconds - measured + seconds,
    )
    setting = Setting(engine.name, trial.measured_until)

    def goodput(system: System) -> float:
        progress = watch(f"trying {system.name}", trial.duration_seconds)
        return policy_run(
            _run(STATIC, system, trial, engine, progress), setting
        ).total.goodput_per_second

    return max(systems, key=goodput)


def _split(load: Load, engine: Hardware, parts: tuple[tuple[str, ...], ...]) -> System:
    if engine.half is None:
        raise ValueError(f"half of {engine.name} is not known")
    # First come first served takes no notice of KV pools.
    policy = replace(_limited(load.policy), kv_pools=(), engine_groups=(), fallback=None)
    system = node_policy.split(Scheduling.FCFS, policy, parts, engine.half, engine.gpus // 2)
    names = " | ".join(group.name for group in system.groups)
    return System(f"{STATIC} {names}", tuple(map(_flagged, system.groups)))
