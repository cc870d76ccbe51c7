"""What a reader of a simulation must know besides its figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

from tidegate.cli.policy_files import PolicyInput
from tidegate.cli.simulate_systems import Hardware, homes
from tidegate.scheduling.contracts import Policy, SchedulingMode
from tidegate.simulator.simulation.result import RequestRecord


def how_simulated(given: PolicyInput, engine: Hardware, with_plugin: bool) -> Iterator[str]:
    """What stands for the pool; ``with_plugin``: an engine with the plug-in is among it."""
    if with_plugin:
        yield (
            "tidegate: with the plug-in in the engine; sidecar: Tidegate before a stock vLLM, "
            "as a pool without the plug-in runs"
        )
    if given.policy.scheduling_mode is not SchedulingMode.TIDEGATE:
        yield (
            f"The pool's mode is {given.policy.scheduling_mode}, simulated as fcfs; under "
            "--policy tidegate or sidecar it is as if switched on"
        )
    if given.gpus is not None and given.gpus != engine.gpus:
        yield (
            f"The pool's engine has {given.gpus} GPUs, {engine.name} has {engine.gpus}: choose the "
            "--calibration that is nearest to your hardware"
        )
    if given.policy.engine_groups:
        yield from _of_groups(given, engine)
    elif given.replicas > 1:
        yield f"One of {given.replicas} replicas is simulated, and gets all of the workload"
    if (fallback := given.policy.fallback) is not None:
        yield f"The fallback ({', '.join(fallback.tiers)}) is not simulated: no engine fails here"


def _of_groups(given: PolicyInput, engine: Hardware) -> Iterator[str]:
    shown = [
        f"{name} ({', '.join(tier.name for tier in given.policy.tiers if tier.name in tiers)})"
        for name, tiers in homes(given.policy).items()
    ]
    yield (
        f"Each engine group is one engine with {engine.gpus} GPUs, and a tier's requests stay at "
        f"home, for spilling is not simulated: {', '.join(shown)}"
    )
    for name, group in given.groups.items():
        if group.replicas > 1:
            yield (
                f"One of {group.replicas} replicas of {name} is simulated, and gets all of its "
                "workload"
            )
    drafts = [f"{name} ({group.draft})" for name, group in given.groups.items() if group.draft]
    if drafts:
        yield (
            "Drafts are not simulated, for how much of one is accepted is not known before it has "
            f"run: {', '.join(drafts)}"
        )


def served_only_here(policy: Policy, records: Iterable[RequestRecord]) -> Iterator[str]:
    """Limits that no scheduler looks at, but an engine or a sidecar does before it."""
    context = policy.model.max_model_len_tokens or inf
    output = {tier.name: tier.output.max_tokens or inf for tier in policy.tiers}
    long = answers = 0
    for one in records:
        long += one.prompt_tokens + max(1, one.output_tokens) > context
        answers += one.output_tokens > output[one.tier]
    if long:
        yield (
            f"{long:,} requests are longer than the model's context of {context:,} tokens: a real "
            "engine refuses them with 400"
        )
    if answers:
        yield (
            f"{answers:,} answers are longer than their tier's output.max: a sidecar refuses such "
            "requests with 400"
        )
