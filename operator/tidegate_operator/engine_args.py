"""Flags in ``spec.engine.args``: those that the schedulers must know of, read and completed.

The sidecar's gate has to know how many sequences and tokens a step of the engine takes; vLLM's own
defaults depend on its version and its GPU, and no metric tells them. So both are always given.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from tidegate.scheduling.contracts import EngineLimits, Task

MAX_NUM_SEQS = "--max-num-seqs"
MAX_NUM_BATCHED_TOKENS = "--max-num-batched-tokens"
DEFAULT_STEP = {MAX_NUM_SEQS: 256, MAX_NUM_BATCHED_TOKENS: 8192}
"""What vLLM 0.32 itself takes for serving a dense model on an H100, sequences rounded down."""
ALLOWED_MEDIA_DOMAINS = "--allowed-media-domains"
ASYNC_SCHEDULING = "--async-scheduling"
SPECULATIVE_CONFIG = "--speculative-config"
_NOT_ASYNC_METHODS = ("ngram", "medusa", "mlp_speculator", "suffix", "custom_class")
"""Ways to draft under which vLLM 0.32 schedules one step at a time."""


def complete(arguments: Sequence[str], task: Task | None) -> list[str]:
    """The pool's arguments with what they leave open about a step.

    Not for embedding: there vLLM derives its batch from the model's length.
    """
    if task is Task.EMBED:
        return list(arguments)
    given = {argument.partition("=")[0].replace("_", "-") for argument in arguments}
    missing = (f"{flag}={value}" for flag, value in DEFAULT_STEP.items() if flag not in given)
    return [*missing, *arguments]


def engine_limits(arguments: Sequence[str], task: Task | None) -> EngineLimits:
    """What the engine will run with, as far as it can be read."""
    completed = complete(arguments, task)
    return EngineLimits(
        max_num_seqs=flag_integer(completed, MAX_NUM_SEQS),
        max_num_batched_tokens=flag_integer(completed, MAX_NUM_BATCHED_TOKENS),
    )


def media_domains(arguments: Sequence[str]) -> tuple[str, ...]:
    """Hosts from which the engine may fetch media; the last flag's, as in vLLM."""
    hosts: list[str] = []
    listing = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name.replace("_", "-") == ALLOWED_MEDIA_DOMAINS:
            hosts, listing = [value] if equals else [], not equals
        elif argument.startswith("-"):
            listing = False
        elif listing:
            hosts.append(argument)
    return tuple(dict.fromkeys([host.lower() for host in hosts if host]))


def flag_integer(arguments: Sequence[str], flag: str) -> int | None:
    """The flag's positive integer, spelled ``--a-b=1`` or ``--a_b 1``; the last one wins.

    None where it is absent or not such a number: vLLM itself will say so when it starts.
    """
    found: int | None = None
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.replace("_", "-") != flag:
            continue
        if not equals:
            value = arguments[position + 1] if position + 1 < len(arguments) else ""
        found = int(value) if value.isdecimal() and int(value) > 0 else None
    return found


def async_scheduling(arguments: Sequence[str]) -> tuple[bool, bool]:
    """Whether vLLM prepares a step while another runs, and whether the arguments say so: else it is
    its default, which depends on how drafts are made."""
    chosen: bool | None = None
    for argument in arguments:
        name = argument.partition("=")[0].replace("_", "-")
        if name in (ASYNC_SCHEDULING, "--no-async-scheduling"):
            chosen = name == ASYNC_SCHEDULING
    if chosen is not None:
        return chosen, True
    return _draft_method(arguments) not in _NOT_ASYNC_METHODS, False


def _draft_method(arguments: Sequence[str]) -> str | None:
    """None: no drafts, or nothing that can be read; vLLM itself will say so when it starts."""
    method: str | None = None
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        name = name.replace("_", "-")
        if name == f"{SPECULATIVE_CONFIG}.method":
            method = value if equals else "".join(arguments[position + 1 : position + 2])
        elif name in (SPECULATIVE_CONFIG, "-sc"):
            text = value if equals else "".join(arguments[position + 1 : position + 2])
            try:
                config = json.loads(text)
            except ValueError:
                continue
            if isinstance(config, dict):
                method = config.get("method")
    return method
