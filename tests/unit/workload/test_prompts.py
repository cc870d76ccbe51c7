"""Prompts of exactly the planned length, equal where a trace says that they begin alike."""

import pytest

from tidegate.workload import PlannedRequest, SharedPrefix, prompt_text, prompt_token_ids


def planned(
    index: int = 0, tokens: int = 100, prefix: SharedPrefix | None = None, tenant: str = "a"
) -> PlannedRequest:
    return PlannedRequest(tenant, index, 0.0, tokens, 8, prefix)


@pytest.mark.parametrize("tokens", [1, 7, 512, 5000])
def test_text_has_four_bytes_a_token_and_ids_are_exact(tokens: int) -> None:
    text = prompt_text(planned(tokens=tokens), seed=1)
    assert len(text.encode()) == 4 * tokens
    ids = prompt_token_ids(planned(tokens=tokens), seed=1, limit=64)
    assert len(ids) == tokens
    assert all(10 <= token < 64 for token in ids)


def test_each_request_has_a_prompt_of_its_own_that_a_seed_repeats() -> None:
    texts = [prompt_text(planned(index), seed=1) for index in range(50)]
    assert len(set(texts)) == 50
    assert texts == [prompt_text(planned(index), seed=1) for index in range(50)]
    assert prompt_text(planned(0), seed=2) not in texts
    assert prompt_text(planned(0, tenant="b"), seed=1) not in texts


def test_equal_blocks_are_equal_text_and_the_rest_is_not() -> None:
    one = prompt_text(planned(0, 100, SharedPrefix((1, 2), 32)), seed=1)
    two = prompt_text(planned(1, 100, SharedPrefix((1, 2), 32)), seed=1)
    other = prompt_text(planned(2, 100, SharedPrefix((1, 3), 32)), seed=1)
    assert one[:256] == two[:256]
    assert one[256:] != two[256:]
    assert one[:128] == other[:128]
    assert one[128:256] != other[128:256]


def test_the_last_block_is_cut_where_the_prompt_ends() -> None:
    short = prompt_text(planned(0, 40, SharedPrefix((1, 2, 3), 32)), seed=1)
    long = prompt_text(planned(1, 96, SharedPrefix((1, 2, 3), 32)), seed=1)
    assert len(short) == 160
    assert long.startswith(short)
