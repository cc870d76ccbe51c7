"""Full passes of the garbage collector: when it is quiet, and in the end all the same."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from tidegate_sidecar.collector import LEAST_SECONDS, MOST_SECONDS, QUIET, Collector


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)


@pytest.mark.parametrize(
    ("in_hand", "seconds", "due"),
    [
        (0, LEAST_SECONDS - 1, False),
        (0, LEAST_SECONDS, True),
        (QUIET, LEAST_SECONDS, True),
        (QUIET + 1, LEAST_SECONDS, False),
        (100_000, MOST_SECONDS - 1, False),
        (100_000, MOST_SECONDS, True),
    ],
)
def test_when_a_full_pass_is_due(in_hand: int, seconds: float, due: bool) -> None:
    collector = Collector(lambda: in_hand)
    collector.begin(100.0)
    assert collector.is_due(100.0 + seconds) is due


def test_no_full_pass_comes_by_itself() -> None:
    passes = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            passes.append(info["generation"])

    Collector(lambda: 0).begin(0.0)
    gc.callbacks.append(note)
    try:
        kept = [[i] for i in range(300_000)]
    finally:
        gc.callbacks.remove(note)
    assert len(kept) == 300_000
    assert set(passes) == {0, 1}
