"""The fake engine's tokens: counts, hashes, lengths."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.simulator.fake_engine.text import (
    TOKEN_BYTES,
    WORDS,
    OutputLengths,
    Prompt,
    generated_text,
)


def test_words_are_one_token_each_and_distinct() -> None:
    assert {len(word.encode()) for word in WORDS} == {TOKEN_BYTES}
    assert len(set(WORDS)) == 1024


@pytest.mark.parametrize(("text", "tokens"), [("a", 1), ("abcd", 1), ("abcde", 2), ("ä" * 4, 2)])
def test_text_counts_a_token_for_each_four_bytes(text: str, tokens: int) -> None:
    assert Prompt.from_text(text).tokens == tokens


@given(st.lists(st.integers(0, 128_255), min_size=1, max_size=50))
def test_token_ids_count_exactly(ids: list[int]) -> None:
    assert Prompt.from_token_ids(ids).tokens == len(ids)


@given(
    ids=st.lists(st.integers(0, 9), min_size=1, max_size=40),
    other=st.lists(st.integers(0, 9), min_size=1, max_size=40),
)
def test_block_hashes_agree_as_far_as_the_prompts_do(ids: list[int], other: list[int]) -> None:
    mine, key = Prompt.from_token_ids(ids).hashes(4, "", 0)
    theirs, other_key = Prompt.from_token_ids(other).hashes(4, "", 0)
    assert len(mine) == len(ids) // 4
    for index, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        assert (a == b) == (ids[: 4 * index + 4] == other[: 4 * index + 4])
    assert (key == other_key) == (ids == other)


def test_a_salt_and_a_seed_change_every_hash() -> None:
    prompt = Prompt.from_text("x" * 64)
    plain, _ = prompt.hashes(4, "", 0)
    assert len(plain) == 4
    for salt, seed in (("tenant", 0), ("", 1)):
        assert not set(plain) & set(prompt.hashes(4, salt, seed)[0])


def test_text_and_ids_of_the_same_bytes_never_share() -> None:
    text, _ = Prompt.from_text("\0" * 128).hashes(4, "", 0)
    ids, _ = Prompt.from_token_ids([0] * 16).hashes(4, "", 0)
    assert not set(text) & set(ids)


def test_generated_text_does_not_depend_on_where_it_is_cut() -> None:
    assert generated_text(5, 0, 3) + generated_text(5, 3, 9) == generated_text(5, 0, 9)
    assert generated_text(5, 0, 9) != generated_text(6, 0, 9)


def test_lengths_follow_their_distribution() -> None:
    lengths = OutputLengths(median_tokens=100, sigma=0.7)
    drawn = [lengths.draw(Prompt.from_text(str(i)).hashes(16, "", 0)[1]) for i in range(2_000)]
    assert statistics.median(drawn) == pytest.approx(100, rel=0.1)
    assert min(drawn) >= 1
    logs = statistics.quantiles(drawn, n=100)
    assert logs[83] / logs[49] == pytest.approx(2.0, rel=0.15)  # e^0.7 at one sigma
    assert OutputLengths(50, 0).draw(1) == 50
