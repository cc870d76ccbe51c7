"""Draft tokens by tier, and in favour of prompts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from support.plugin_bench import (
    Bench,
    case,
    listening,
    policy,
    tier,
    told_in_a_run,
)

from tidegate.scheduling.contracts import StepStatistics

if TYPE_CHECKING:
    pass


NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}


@case
def no_draft_is_scheduled_for_a_tier_without(bench: Bench) -> None:
    """And at most one for a tier that may have one; acceptance is told by tier."""
    path = str(bench.folder / "steps")
    terms = policy(
        [tier("t0", 300), tier("t2", 100, draft_tokens=1), tier("t3", 0, draft_tokens=0)]
    )
    host = bench.host(terms, statistics=path, speculative_config=NGRAM)
    host.accepted_drafts = 2
    with listening(path) as receiver:
        for i in range(9):
            name = ("t0", "t2", "t3")[i % 3]
            host.add(f"{name}-{i}", 40, 30, name)
        told = told_in_a_run(host, receiver)
    lengths: dict[str, set[int]] = {"t0": set(), "t2": set(), "t3": set()}
    for step in host.steps:
        for name, drafts in step.output.scheduled_spec_decode_tokens.items():
            lengths[name[:2]].add(len(drafts))
    assert max(lengths["t0"]) == 3
    assert lengths["t2"] == {1}
    assert lengths["t3"] == set()
    drafted, accepted = _acceptance(told)
    scheduled = [
        (name[:2], len(drafts))
        for step in host.steps
        for name, drafts in step.output.scheduled_spec_decode_tokens.items()
    ]
    for name in ("t0", "t2"):
        most = sum(tokens for tier, tokens in scheduled if tier == name)
        most_accepted = sum(min(tokens, 2) for tier, tokens in scheduled if tier == name)
        if bench.is_async:  # of a request that ended in the step before nothing comes back
            assert 0 < drafted[name] <= most
            assert 0 < accepted[name] <= most_accepted
        else:
            assert (drafted[name], accepted[name]) == (most, most_accepted)
    assert "t3" not in drafted
    assert {len(one.decode_tokens) for one in told if one.drafts} != {0}
    assert not host.scheduler.tidegate.counters.failures


def _acceptance(told: list[StepStatistics]) -> tuple[Counter[str], Counter[str]]:
    drafted: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    for step in told:
        for one in step.drafts:
            drafted[one.tier] += one.drafted_tokens
            accepted[one.tier] += one.accepted_tokens
    return drafted, accepted


@case
def drafts_give_way_to_a_prompt(bench: Bench) -> None:
    """28 decodes with 3 drafts each take 112 of 128 tokens; the prompt may use 38."""
    tiers = [tier("t0", 300), tier("t1", 200)]
    host = bench.host(policy(tiers), max_num_batched_tokens=128, speculative_config=NGRAM)
    for i in range(28):
        host.add(f"t1-{i}", 20, 200, "t1")
    while len(host.first_token) < 28:
        host.step()
    for _ in range(3):
        host.step()
    assert host.steps[-1].output.total_num_scheduled_tokens == 112
    host.add("t0", 300, 2, "t0")
    step = host.step()
    assert step.prefill == {"t0": 38}
    assert step.output.total_num_scheduled_tokens == 128
    host.run()
    assert not host.scheduler.tidegate.counters.failures
