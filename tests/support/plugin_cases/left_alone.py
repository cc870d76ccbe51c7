"""What the plug-in leaves to vLLM, and what of vLLM's does not disturb it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from support.plugin_bench import (
    Bench,
    bookkeeping_is_true,
    case,
    policy,
)

if TYPE_CHECKING:
    pass


@case
def without_tags_it_is_stock(bench: Bench) -> None:
    """Step by step the same, under preemption."""
    told = []
    for stock in (True, False):
        host = bench.host(policy(), blocks=40, stock=stock)
        for i in range(20):
            host.add(f"r{i}", 50 + i * 7, 40)
        host.run()
        told.append([(step.prefill, step.decodes, step.preempted) for step in host.steps])
    assert told[0] == told[1]
    assert any(preempted for _, _, preempted in told[0])


@case
def what_the_policy_does_not_know_is_left_alone(bench: Bench) -> None:
    """No tags, unreadable ones, an unknown tier, a pooling request; those with a tier go first."""
    host = bench.host(policy(), max_num_seqs=3)
    host.add("none", 40, 30)
    host.add("unknown", 40, 30, "t9")
    host.add("unreadable", 40, 30, "t0", weight="heavy")
    host.add("t3", 40, 30, "t3")
    step = host.step()
    assert step.prefill == {"t3": 40, "none": 40, "unknown": 40}
    assert host.running == ["t3", "none", "unknown"]
    host.run()
    tidegate = host.scheduler.tidegate
    assert not tidegate.counters.failures
    assert tidegate.roster.waiting == 0


@case
def pooling_requests_are_left_alone(bench: Bench) -> None:
    from vllm.pooling_params import PoolingParams
    from vllm.v1.request import Request

    host = bench.host(policy())
    host.add("t0", 40, 30, "t0")
    request = Request("pooled", list(range(5, 45)), None, PoolingParams(), block_hasher=host.hasher)
    host.requests["pooled"] = request
    host.scheduler.add_request(request)
    output = host.scheduler.schedule()
    assert output.num_scheduled_tokens == {"t0": 40, "pooled": 40}
    assert not host.scheduler.tidegate.counters.failures


@case
def a_grammar_that_is_being_compiled_holds_up_nobody(bench: Bench) -> None:

    from vllm.v1.request import RequestStatus

    host = bench.host(policy())
    late = host.add("late", 20, 4, "t0", enqueue=False)
    late.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    late.structured_output_request = SimpleNamespace(grammar=None)
    host.scheduler.add_request(late)
    host.add("t3", 20, 40, "t3")
    for _ in range(3):
        host.step()
    assert host.running == ["t3"]
    late.structured_output_request.grammar = object()
    host.step()  # vLLM finds it compiled
    late.structured_output_request = None  # its tokens are not checked here
    step = host.step()
    assert step.prefill == {"late": 20}
    host.run()
    assert not host.scheduler.tidegate.counters.failures


@case
def the_queueing_policy_of_the_engine_does_not_matter(bench: Bench) -> None:
    told = []
    for name in ("fcfs", "priority"):
        host = bench.host(policy(), blocks=30, max_num_seqs=8, scheduling_policy=name)
        for i in range(24):
            tier = ("t3", "t2", "t0")[i % 3]
            host.add(f"{tier}-{i}", 40 + i * 5, 30, tier)
            host.step()
        host.run()
        told.append([(step.prefill, step.decodes, step.preempted) for step in host.steps])
    assert told[0] == told[1]
    preempted = {name[:2] for _, _, names in told[0] for name in names}
    assert preempted
    assert "t0" not in preempted


@case
def the_prefix_cache_may_be_reset_while_requests_run(bench: Bench) -> None:
    host = bench.host(policy(), blocks=100)
    for i in range(10):
        host.add(f"t{i % 2 * 3}-{i}", 100, 20, f"t{i % 2 * 3}")
    for _ in range(5):
        host.step()
    assert host.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert host.scheduler.tidegate.view.owners.cached.total() == 0
    host.run()
    bookkeeping_is_true(host)
    assert all(one.num_output_tokens == 20 for one in host.requests.values())
    assert not host.scheduler.tidegate.counters.failures


@case
def a_prompt_list_shares_one_number_and_keeps_its_order(bench: Bench) -> None:
    host = bench.host(policy(), max_num_seqs=1)
    host.add("later", 20, 2, "t0", sequence=8)
    for i in range(3):
        host.add(f"n-{i}", 20, 2, "t0", sequence=7)
    host.run()
    order = sorted(host.first_token, key=lambda name: host.first_token[name])
    assert order == ["n-0", "n-1", "n-2", "later"]
