"""What a request says of itself, and what of it is not believed."""

from typing import Any

import pytest

from tidegate.vllm_plugin.request_tags import RequestTags, read_tags


def test_all_of_them() -> None:
    xargs = {
        "tidegate_tier": "t0",
        "tidegate_tenant": "5f2a",
        "tidegate_sequence": 7,
        "tidegate_weight": 3,
        "tidegate_expected_tokens": 120,
        "other": [1.5],
    }
    assert read_tags(xargs) == RequestTags("t0", "5f2a", 7, 3, 120)


def test_the_tier_alone_will_do() -> None:
    assert read_tags({"tidegate_tier": "t0"}) == RequestTags("t0", "", None, 1, 0)


@pytest.mark.parametrize(
    "xargs",
    [
        None,
        {},
        {"tidegate_tenant": "a"},
        {"tidegate_tier": 3},
        {"tidegate_tier": ["t0"]},
        {"tidegate_tier": "t0", "tidegate_sequence": "7"},
        {"tidegate_tier": "t0", "tidegate_sequence": 7.5},
        {"tidegate_tier": "t0", "tidegate_sequence": -1},
        {"tidegate_tier": "t0", "tidegate_weight": True},
        {"tidegate_tier": "t0", "tidegate_expected_tokens": [1]},
    ],
)
def test_without_a_tier_or_unreadable_there_are_none(xargs: dict[str, Any] | None) -> None:
    assert read_tags(xargs) is None


@pytest.mark.parametrize(("weight", "taken"), [(0, 1), (-5, 1), (10**9, 1000)])
def test_weights_are_kept_within_the_contract(weight: int, taken: int) -> None:
    tags = read_tags({"tidegate_tier": "t0", "tidegate_weight": weight})
    assert tags is not None
    assert tags.weight == taken
