"""The parts of the KV cache in groups where not every tier runs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate_operator.kv_parts import parts_in_group

from tidegate.scheduling.contracts import KvPool

TIERS = ["a", "b", "c", "d", "e", "f"]


def percents(parts: tuple[KvPool, ...] | None) -> dict[str, int] | None:
    return None if parts is None else {part.name: part.percent for part in parts}


@pytest.mark.parametrize(
    ("named", "may_run", "expected"),
    [
        pytest.param({"a": 70, "b": 20, "c": 10}, "abc", None, id="all may run"),
        pytest.param({"a": 70, "b": 20, "c": 10}, "bc", {"b": 67, "c": 33}, id="two of three"),
        pytest.param({"a": 70, "b": 20, "c": 10}, "c", {"c": 100}, id="one"),
        pytest.param({"a": 50, "b": 25}, "b", {"b": 75}, id="nobody owns the rest"),
        pytest.param({"a": 60, "b": 20, "-": "c"}, "bc", {"b": 50}, id="the rest gains too"),
        pytest.param({"a": 60, "b": 20, "-": "c"}, "ab", {"a": 75, "b": 25}, id="the rest goes"),
        pytest.param({"a": 60, "b": 0}, "b", {"b": 0}, id="a part of nothing gains nothing"),
        pytest.param({"a": 60, "-": "c"}, "c", {}, id="only the rest"),
    ],
)
def test_what_cannot_be_used_goes_to_the_others(
    named: dict[str, int | str], may_run: str, expected: dict[str, int] | None
) -> None:
    parts = [KvPool(name, (name,), int(percent)) for name, percent in named.items() if name != "-"]
    served = [part.name for part in parts] + ([str(named["-"])] if "-" in named else [])
    assert percents(parts_in_group(parts, served, may_run)) == expected


def test_a_part_is_lent_as_far_as_before_and_keeps_only_those_who_run_there() -> None:
    parts = [
        KvPool("talk", ("a", "b"), 40, lendable_percent=10, borrow_limit_percent=5),
        KvPool("code", ("c",), 40),
    ]
    (talk,) = parts_in_group(parts, "abc", "b") or ()
    assert talk == KvPool("talk", ("b",), 80, lendable_percent=20, borrow_limit_percent=5)


@st.composite
def divisions(draw: st.DrawFn) -> list[KvPool]:
    """Parts of one to three tiers each; some tiers are in none."""
    tiers, left, parts = draw(st.permutations(TIERS)), 100, []
    while tiers and draw(st.booleans()):
        count = draw(st.integers(1, min(3, len(tiers))))
        percent = draw(st.integers(0, left))
        lendable = draw(st.none() | st.integers(0, percent))
        parts.append(KvPool(tiers[0], tuple(sorted(tiers[:count])), percent, lendable))
        tiers, left = tiers[count:], left - percent
    return parts


@settings(max_examples=80, deadline=None)
@given(divisions(), st.sets(st.sampled_from(TIERS)))
def test_nothing_is_lost_nobody_gets_less_and_proportions_stay(
    parts: list[KvPool], may_run: set[str]
) -> None:
    made = parts_in_group(parts, TIERS, may_run)
    if made is None:
        assert not parts or may_run == set(TIERS)
        return
    before = {part.name: part for part in parts}
    unowned = set(TIERS) - {tier for part in parts for tier in part.tiers}
    rest = 100 - sum(part.percent for part in parts)
    whole = 100 if unowned else 100 - rest
    shares = [(before[part.name].percent, part.percent) for part in made]
    if unowned & may_run:
        shares.append((rest, 100 - sum(part.percent for part in made)))
    total = sum(had for had, _ in shares)
    if total:
        assert sum(has for _, has in shares) == whole
        assert all(has >= had and abs(has - whole * had / total) < 1 for had, has in shares)
    for part in made:
        assert set(part.tiers) == set(before[part.name].tiers) & may_run
        assert part.lendable_percent is None or part.lendable_percent <= part.percent
    assert {part.name for part in made} == {p.name for p in parts if set(p.tiers) & may_run}
