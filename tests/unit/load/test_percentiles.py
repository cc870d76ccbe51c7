"""Nearest-rank percentiles."""

import pytest

from tidegate.load.percentiles import percentile, percentiles


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, (1, 1, 1)), (2, (1, 2, 2)), (100, (50, 95, 99)), (101, (51, 96, 100))],
)
def test_each_is_a_measured_value(count: int, expected: tuple[int, ...]) -> None:
    ordered = [float(value) for value in range(1, count + 1)]
    assert tuple(percentile(ordered, percent) for percent in (50, 95, 99)) == expected


def test_of_unordered_values_and_of_none() -> None:
    of_three = percentiles([3.0, 1.0, 2.0])
    assert of_three is not None
    assert (of_three.p50, of_three.p99, of_three.max) == (2.0, 3.0, 3.0)
    assert percentiles([]) is None
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
