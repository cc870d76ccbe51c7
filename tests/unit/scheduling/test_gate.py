"""The gate's control law before a small engine, judged by throughput, wait and idling at once."""

from __future__ import annotations

from collections import deque
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.scheduling.contracts import EngineLimits
from tidegate.scheduling.gate import Gate
from tidegate.scheduling.tokens_in_flight_gate import TokensInFlightGate

Shape = tuple[str, int, int]


def shapes(name: str, count: int) -> list[Shape]:
    """(id, prompt, output) of a kind of traffic, spread evenly over its range."""
    prompts, outputs = {
        "chat": (range(50, 400, 37), range(20, 250, 23)),
        "long": (range(14_000, 18_000, 511), range(50, 200, 17)),
        "writing": (range(50, 400, 37), range(1500, 2500, 101)),
    }[name]
    prompt, output = cycle(prompts), cycle(outputs)
    return [(f"{name}{i}", next(prompt), next(output)) for i in range(count)]


WORK = {
    "chat": shapes("chat", 1200),
    "16K prompts": shapes("long", 60),
    "2K outputs": shapes("writing", 80),
    "step change": shapes("chat", 400) + shapes("long", 40) + shapes("writing", 60),
}


def alone(work: list[Shape], engine: Any) -> Any:
    """The engine gets all requests at once."""
    left = len(work)

    def on_step(events: Any) -> None:
        nonlocal left
        left -= len(events.ended)

    for shape in work:
        engine.submit(*shape)
    engine.run(on_step, lambda: False, lambda: not left)
    return engine


def gated(work: list[Shape], engine: Any, limits: EngineLimits, kv_known: bool = True) -> Any:
    """The same through a gate, whose host sees tokens only, and metrics every 25 steps."""
    gate = Gate(limits)
    queue, left = deque(work), len(work)
    spoke: dict[str, int] = {}
    step = heard = 0

    def pump() -> None:
        while queue and gate.is_open():
            id, prompt, output = queue.popleft()
            gate.dispatched(id, 1, prompt)
            engine.submit(id, prompt, output)

    def on_step(events: Any) -> None:
        nonlocal left, step, heard
        first, ended = set(events.first_tokens), set(events.ended)
        for id in events.tokens:
            if id in first:
                gate.started(id)
            if spoke.get(id) == step:
                step += 1
                gate.step(bool(queue))
            spoke[id] = step
            if id in ended:
                gate.ended(id)
                left -= 1
            pump()
        heard += 1
        if heard % 25 == 0:
            used = engine.kv_used / engine.kv_tokens if kv_known else None
            gate.engine_metrics(len(engine.running), len(engine.waiting), used)
            pump()

    pump()
    engine.run(on_step, lambda: bool(queue), lambda: not left)
    assert gate.in_flight == gate.not_started == 0
    return engine


def p95(values: list[int]) -> int:
    return sorted(values)[int(len(values) * 0.95)]


@pytest.mark.parametrize("kv_tokens", [10**9, 300_000], ids=["KV plenty", "KV short"])
@pytest.mark.parametrize("seats", [16, 128])
@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_the_engine_is_kept_busy_and_its_queue_short(
    build: SimpleNamespace, work: list[Shape], seats: int, kv_tokens: int
) -> None:
    reference = alone(work, build.engine(seats, kv_tokens=kv_tokens))
    engine = gated(work, build.engine(seats, kv_tokens=kv_tokens), EngineLimits(seats, 2048))
    assert reference.now / engine.now >= 0.97
    assert p95(engine.waits_steps) <= 2
    assert engine.idle_steps / engine.step_number <= 0.012  # small runs: the first fill counts


@pytest.mark.parametrize("work", ["chat", "16K prompts", "step change"])
def test_unknown_seats_and_kv_cost_little_and_are_not_taken_for_zero(
    build: SimpleNamespace, work: str
) -> None:
    reference = alone(WORK[work], build.engine(128))
    engine = gated(WORK[work], build.engine(128), EngineLimits(), kv_known=False)
    assert reference.now / engine.now >= 0.9
    assert p95(engine.waits_steps) <= 16


def test_a_huge_prompt_passes_and_holds_back_the_next() -> None:
    gate = Gate(EngineLimits(max_num_seqs=8, max_num_batched_tokens=2048))
    assert gate.is_open()
    gate.dispatched("huge", 1, 200_000)
    assert not gate.is_open()
    steps = 0
    while not gate.is_open():
        gate.step(True)
        steps += 1
    assert 96 <= steps <= 100, "open again once less than two budgets of it are left"
    gate.ended("huge")
    assert gate.is_open()


def test_places_are_freed_by_ends_and_starts_alone() -> None:
    gate = Gate(EngineLimits(max_num_seqs=4, max_num_batched_tokens=8192))
    for number in range(4):
        assert gate.is_open()
        gate.dispatched(str(number), 1, 10)
    assert gate.not_started == gate.in_flight == 4
    for _ in range(4):
        gate.engine_metrics(0, 0, 0.0)
        assert not gate.is_open(), "no clock and no reading opens it"
    gate.started("0")
    gate.started("0")
    assert (gate.not_started, gate.in_flight) == (3, 4)
    gate.ended("0")
    assert gate.is_open()
    with pytest.raises(KeyError):
        gate.ended("0")


def test_the_window_is_halved_when_requests_wait_in_the_engine() -> None:
    gate = Gate(EngineLimits(max_num_seqs=256, max_num_batched_tokens=8192))
    gate.dispatched("first", 1, 100)
    window = gate.window
    gate.started("first")
    number = 0
    while gate.window == window and number < 100:
        gate.dispatched(str(number), 1, 100)
        for _ in range(6):
            gate.step(False)
        gate.started(str(number))
        number += 1
    assert gate.window == window // 2
    assert number <= 25


def test_a_start_takes_back_what_too_many_steps_were_taken_to_have_prefilled() -> None:
    gate = Gate(EngineLimits(max_num_seqs=64, max_num_batched_tokens=2_000))
    gate.dispatched("first", 1, 10_000)
    gate.dispatched("second", 1, 16_000)
    for _ in range(12):
        gate.step(True)
    gate.started("first")
    for _ in range(6):
        assert not gate.is_open(), "the second has had no more than one step's worth"
        gate.step(True)
    assert gate.is_open()


def test_sequences_count_and_not_requests() -> None:
    gate = Gate(EngineLimits(max_num_seqs=8, max_num_batched_tokens=8192))
    gate.dispatched("n", 8, 10)
    assert gate.not_started == 8
    assert not gate.is_open()
    gate.started("n")
    assert not gate.is_open(), "all seats are taken"
    gate.ended("n")
    assert gate.in_flight == 0


def test_embeddings_are_gated_by_tokens_in_flight() -> None:
    gate = TokensInFlightGate(EngineLimits(max_num_batched_tokens=1000))
    gate.dispatched("huge", 1, 50_000)
    assert not gate.is_open()
    gate.ended("huge")
    for number in range(4):
        assert gate.is_open()
        gate.dispatched(str(number), 2, 500)
    assert not gate.is_open()
    assert gate.not_started == gate.in_flight == 8
    assert gate.window >= 1
    gate.ended("0")
    assert gate.is_open()


def unstarted_for_long(waiting: int | None) -> Gate:
    """A gate of unknown seats with 8 running and one that shows no start for 50 steps."""
    gate = Gate(EngineLimits(max_num_batched_tokens=8192))
    for number in range(8):
        gate.dispatched(str(number), 1, 10)
        gate.started(str(number))
    gate.dispatched("slow", 1, 10)
    gate.engine_metrics(8, waiting, 0.1)
    for _ in range(50):
        gate.step(True)
    return gate


def test_an_engine_whose_queue_is_empty_lacks_no_seat() -> None:
    assert unstarted_for_long(waiting=0).is_open()
    assert not unstarted_for_long(waiting=1).is_open()
    assert not unstarted_for_long(waiting=None).is_open()


def test_what_the_engine_runs_is_the_least_it_can_run() -> None:
    gate = unstarted_for_long(waiting=1)
    gate.engine_metrics(20, 0, 0.1)
    assert gate.is_open()


def test_the_prefill_window_holds_while_anything_decodes() -> None:
    gate = Gate(EngineLimits(max_num_seqs=64, max_num_batched_tokens=8192))
    gate.apply_limits(EngineLimits(max_num_seqs=64, max_num_batched_tokens=8192), 1_000)

    def outstanding() -> int:
        sent = 0
        while gate.is_open():
            gate.dispatched(f"r{gate.in_flight}", 1, 400)
            sent += 400
        return sent

    idle = outstanding()
    assert idle > 4_000  # nobody decodes: the engine's own budgets
    for number in range(gate.in_flight):
        gate.started(f"r{number}")
    assert outstanding() == 2_000  # whole prompts, up to two budgets
    gate.apply_limits(EngineLimits(max_num_seqs=64, max_num_batched_tokens=8192))
    assert gate.is_open()


def chunked(chunk_tokens: int | None) -> Gate:
    limits = EngineLimits(max_num_seqs=64, max_num_batched_tokens=8192)
    gate = Gate(limits)
    gate.apply_limits(limits, None, chunk_tokens)
    return gate


def test_a_long_prompt_in_chunks_leaves_the_rest_of_the_steps_to_others() -> None:
    for chunk, sent in ((None, 0), (512, 7)):
        gate = chunked(chunk)
        for number in range(8):  # a window of more than two
            gate.dispatched(f"short{number}", 1, 1)
        gate.step(True)
        for number in range(7):
            gate.started(f"short{number}")
        gate.dispatched("long", 1, 100_000)
        while gate.is_open() and sent:
            gate.dispatched(f"more{sent}", 1, 1_000)
            sent -= 1
        assert gate.is_open() is (chunk is not None)
        assert sent == 0


@pytest.mark.parametrize(("chunk", "narrows"), [(None, True), (512, False)])
def test_a_prompt_in_chunks_is_not_late_for_its_chunks(chunk: int | None, narrows: bool) -> None:
    gate = chunked(chunk)
    gate.dispatched("first", 1, 100)
    gate.step(True)
    gate.started("first")
    before = gate.window
    for number in range(40):
        gate.dispatched(f"r{number}", 1, 8_000)
        for _ in range(16):
            gate.step(False)
        gate.started(f"r{number}")
        gate.ended(f"r{number}")
    assert (gate.window < before) is narrows


def run_one(gate: Gate, name: str) -> None:
    gate.dispatched(name, 1, 100)
    gate.started(name)


def fill(gate: Gate, prompt_tokens: int) -> int:
    """How many it lets in at once."""
    count = 0
    while gate.is_open():
        gate.dispatched(f"r{gate.in_flight}", 1, prompt_tokens)
        count += 1
    return count


def test_the_window_is_never_wider_than_what_an_engine_can_start() -> None:
    """Short prompts before 4 seats: the tokens of two steps alone would make it 165."""
    gate = Gate(EngineLimits(max_num_seqs=4, max_num_batched_tokens=2_048))
    assert fill(gate, 25) == 4
    assert gate.window == 5
    gate.engine_metrics(4, 0, 0.1)
    for _ in range(500):
        gate.step(True)
    assert gate.window == 5


def test_a_window_that_was_halved_is_felt() -> None:
    gate = Gate(EngineLimits(max_num_seqs=8, max_num_batched_tokens=2_048))
    for number in range(30):
        gate.dispatched(f"late{number}", 1, 25)
        for _ in range(6):
            gate.step(False)
        gate.started(f"late{number}")
        gate.ended(f"late{number}")
    assert gate.window == 4
    assert fill(gate, 25) == 4


@pytest.mark.parametrize(("prompt_tokens", "grows"), [(100, True), (1_900, False)])
def test_the_window_grows_where_it_alone_holds_something_back(
    prompt_tokens: int, grows: bool
) -> None:
    gate = Gate(EngineLimits(max_num_seqs=64, max_num_batched_tokens=1_000))
    gate.dispatched("first", 1, 4_000)  # the window begins at 2
    for _ in range(4):
        gate.step(False)
    gate.started("first")
    gate.engine_metrics(1, 0, 0.1)
    before = gate.window
    assert fill(gate, prompt_tokens) == before == 2
    gate.step(True)
    assert (gate.window > before) is grows


@pytest.mark.parametrize("ours", [0, 1])
def test_kv_that_is_held_by_others_or_by_what_ended_teaches_no_capacity_for_good(ours: int) -> None:
    """One at a time, for ever, was what a single such reading led to."""
    gate = Gate(EngineLimits(16, 2048))
    for number in range(ours):
        run_one(gate, f"first{number}")
    gate.engine_metrics(16, 50, 0.4)  # full of somebody else's requests, and they wait
    gate.engine_metrics(16, 0, 0.4)
    for number in range(ours):
        gate.ended(f"first{number}")
    admitted = 0
    for number in range(8):
        if gate.is_open():
            run_one(gate, f"r{number}")
            admitted += 1
        gate.step(True)
        gate.engine_metrics(admitted, 0, 0.01 * admitted)
    assert admitted >= 7


def test_r3_metrics_that_cease_leave_what_they_taught_in_force() -> None:
    """Not told is not empty: room comes by ends alone."""
    gate = Gate(EngineLimits(max_num_seqs=16, max_num_batched_tokens=1_000))
    for number in range(5):
        gate.dispatched(f"r{number}", 1, 100)
    for number in range(4):
        gate.started(f"r{number}")
    gate.engine_metrics(4, 1, 0.95)  # so that 421 tokens are all that it holds
    for _ in range(3):
        assert not gate.is_open()
        gate.engine_metrics(None, None, None)
    gate.ended("r0")
    gate.ended("r1")
    assert gate.is_open()


@pytest.mark.parametrize("told", [True, False])
def test_r3_without_metrics_the_window_grows_on_evidence_alone(told: bool) -> None:
    """Free seats are known, but not whether there is KV for them, and the last start was late."""
    gate = Gate(EngineLimits(max_num_seqs=64, max_num_batched_tokens=1_000))
    gate.dispatched("late", 1, 4_000)
    for _ in range(12):
        gate.step(False)
    gate.started("late")
    gate.engine_metrics(1, 0, 0.1)
    if not told:
        gate.engine_metrics(None, None, None)
    before = gate.window
    assert fill(gate, 100) == before
    gate.step(True)
    assert (gate.window > before) is told
