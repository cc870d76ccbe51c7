"""The work queue: each key once, one worker a key, and no hot loop."""

import asyncio

from tidegate_operator.work_queue import FIRST_IN_A_ROW, WorkQueue


async def test_a_key_put_twice_is_taken_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "a"):
        queue.put(key)
    assert [await queue.take(), await queue.take()] == ["a", "b"]
    assert len(queue) == 0


async def test_a_key_put_while_it_is_worked_on_comes_again_afterwards_and_not_before() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.put("a")
    await queue.take()
    queue.put("a")
    assert len(queue) == 0
    queue.done("a")
    assert await asyncio.wait_for(queue.take(), 5) == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_a_failing_key_comes_back_ever_later_and_is_forgiven_on_success() -> None:
    queue: WorkQueue[str] = WorkQueue(base_seconds=0.001, highest_seconds=0.004)
    delays = []
    queue.put("a")
    for _ in range(4):
        key = await asyncio.wait_for(queue.take(), 5)
        delays.append(queue.failed(key))
    assert delays == [0.001, 0.002, 0.004, 0.004]
    queue.done(await asyncio.wait_for(queue.take(), 5))
    assert queue.failures("a") == 0


async def test_events_do_not_shorten_a_back_off_but_a_new_spec_does() -> None:
    queue: WorkQueue[str] = WorkQueue(base_seconds=1000)
    queue.put("a")
    queue.failed(await queue.take())
    queue.put("a")
    assert len(queue) == 0
    queue.put("a", now=True)
    assert await asyncio.wait_for(queue.take(), 5) == "a"
    queue.close()


async def test_what_is_urgent_is_not_put_off_by_the_failure_of_the_run_before() -> None:
    """A revocation that comes while a pool's reconcile is about to fail."""
    queue: WorkQueue[str] = WorkQueue(base_seconds=1000, highest_seconds=5000)
    queue.put("a")
    await queue.take()
    queue.put("a", now=True)
    queue.put("a")
    queue.failed("a")
    assert await asyncio.wait_for(queue.take(), 5) == "a"
    queue.put("a")
    assert queue.failed("a") == 2000, "an event is no reason to hurry, and failures are counted on"
    assert len(queue) == 0
    queue.close()


async def test_a_back_off_can_be_bounded_by_who_knows_how_much_hangs_on_it() -> None:
    queue: WorkQueue[str] = WorkQueue(base_seconds=1000, highest_seconds=5000)
    queue.put("a")
    assert queue.failed(await queue.take(), 0.001) == 0.001
    assert await asyncio.wait_for(queue.take(), 5) == "a"


async def test_what_comes_first_overtakes_until_it_was_worked_on() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "c"):
        queue.put(key)
    queue.put("c", first=True)
    assert [await queue.take(), len(queue)] == ["c", 2], "it waits once"
    queue.failed("c")
    queue.put("c", now=True)
    assert await queue.take() == "c", "a failure takes nothing from it"
    queue.put("b", first=True)
    queue.goes_on("c")
    assert [await queue.take() for _ in range(3)] == ["b", "a", "c"]
    queue.put("b")
    queue.put("c", first=True)
    queue.done("b")
    queue.done("c")
    assert [await queue.take() for _ in range(2)] == ["c", "b"], "asked for while worked on"


async def test_what_comes_first_starves_nothing() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.put("other")
    queue.put("urgent", first=True)
    taken = []
    for _ in range(FIRST_IN_A_ROW + 1):
        taken.append(await queue.take())
        queue.put(taken[-1], first=taken[-1] == "urgent")
        queue.done(taken[-1])
    assert taken == ["urgent"] * FIRST_IN_A_ROW + ["other"]
