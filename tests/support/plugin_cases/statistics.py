"""What is told of each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.plugin_bench import (
    Bench,
    case,
    listening,
    policy,
    pools,
    received,
    told_in_a_run,
)

from tidegate.scheduling.contracts import StepStatistics

if TYPE_CHECKING:
    from support.scheduler_host import SchedulerHost


@case
def every_step_is_told_and_nobody_need_listen(bench: Bench) -> None:
    path = str(bench.folder / "steps")
    host = bench.host(pools(50, 50), blocks=60, max_num_seqs=8, statistics=path)
    history = list(range(10, 10 + 96))
    host.add("t2-first", history, 2, "t2")
    host.run()
    silent = _steps_that_computed(host)
    host.scheduler.tidegate._notes._pools_due = 0.0  # told at the next step
    told: list[StepStatistics] = []
    with listening(path) as receiver:
        for i in range(12):
            host.add(f"t2-{i}", [*history, *range(200, 220 + i)], 30, "t2", sequence=100 + i)
        for i in range(14):
            if i == 8:
                host.add("t0", 800, 2, "t0", sequence=900)
            host.step()
            told += received(receiver)
    seen = host.steps[-14:][: len(told)]
    assert len(told) == 14 - (host.depth - 1)
    assert [one.step for one in told] == list(range(silent + 1, silent + 1 + len(told)))
    assert told[0].dropped_total == silent
    for one, step in zip(told, seen, strict=True):
        prefills = sum(prefill.tokens for prefill in one.prefills)
        assert len(one.decodes) + prefills == step.output.total_num_scheduled_tokens
        assert len(one.preemptions) == len(step.preempted)
        assert one.seconds > 0
        assert not one.decode_tokens
    first = {prefill.sequence: prefill for prefill in told[0].prefills}
    assert (first[100].reused_tokens, first[100].context_tokens) == (96, 96)
    assert set(told[2].decodes) >= {100, 101}
    victims = [victim for one in told for victim in one.preemptions]
    assert victims
    assert {(victim.for_sequence, victim.cause.value) for victim in victims} == {(900, "admission")}
    assert all(victim.lost_tokens > 96 for victim in victims)
    assert [pool.nominal_blocks for pool in told[0].pools] == [30, 30]
    assert [tier.name for tier in told[0].tiers] == ["t0", "t2"]
    assert told[0].tiers[0].room_blocks >= 30
    host.run()  # nobody reads any more
    reporter = host.scheduler.tidegate._reporter
    assert reporter.sent == len(told)
    assert reporter.sent + reporter.dropped == _steps_that_computed(host)
    host.scheduler.shutdown()
    assert not host.scheduler.tidegate.counters.failures


def _steps_that_computed(host: SchedulerHost) -> int:
    return sum(bool(step.prefill or step.decodes or step.preempted) for step in host.steps)


@case
def what_a_victim_computes_again_is_told_with_its_cause(bench: Bench) -> None:
    path = str(bench.folder / "steps")
    host = bench.host(policy(), max_num_seqs=1, blocks=40, statistics=path)
    with listening(path) as receiver:
        host.add("t3", 100, 20, "t3", sequence=1)
        for _ in range(5):
            host.step()
        host.add("t0", 1000, 2, "t0", sequence=2)  # takes the seat, and the victim's cache
        told = received(receiver) + told_in_a_run(host, receiver)
    (victim,) = [victim for one in told for victim in one.preemptions]
    again = [one for step in told for one in step.prefills if one.recomputed_tokens]
    assert (victim.sequence, victim.for_sequence) == (1, 2)
    assert {(one.sequence, one.caused_by) for one in again} == {(1, "t0")}
    reused = sum(one.reused_tokens for step in told for one in step.prefills if one.sequence == 1)
    assert sum(one.recomputed_tokens for one in again) == victim.lost_tokens - reused
