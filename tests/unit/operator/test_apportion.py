"""Webster's method with one seat each: the properties that it is chosen for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_operator.apportion import apportion

shares = st.lists(st.integers(1, 1000), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("seats", "given_shares", "expected"),
    [
        (1, [7], (1,)),
        (3, [1, 1, 1], (1, 1, 1)),
        (4, [1, 1, 1], (2, 1, 1)),
        (8, [60, 30, 10], (5, 2, 1)),
        (10, [70, 20, 10], (7, 2, 1)),
        (4, [1000, 1, 1], (2, 1, 1)),
        (100, [53, 24, 23], (53, 24, 23)),
    ],
)
def test_seats(seats: int, given_shares: list[int], expected: tuple[int, ...]) -> None:
    assert apportion(seats, given_shares) == expected


@given(shares, st.integers(0, 60))
def test_each_has_one_and_one_seat_more_never_takes_one_away(share: list[int], more: int) -> None:
    before = apportion(len(share) + more, share)
    after = apportion(len(share) + more + 1, share)
    assert min(before) >= 1
    assert sum(before) == len(share) + more
    assert sorted(b - a for a, b in zip(before, after, strict=True))[-1] == 1
    assert all(a <= b for a, b in zip(before, after, strict=True))


@given(shares, st.integers(0, 60))
def test_a_greater_share_never_gets_less(share: list[int], more: int) -> None:
    given_seats = apportion(len(share) + more, share)
    for one, seats in zip(share, given_seats, strict=True):
        for other, others_seats in zip(share, given_seats, strict=True):
            assert one <= other or seats >= others_seats


@given(shares, st.integers(20, 200))
def test_no_move_of_a_seat_would_be_fairer(share: list[int], more: int) -> None:
    """Webster's own criterion: of two groups, no move makes seats per share more even."""
    seats = apportion(len(share) + more, share)
    for a, b in ((a, b) for a in range(len(share)) for b in range(len(share)) if a != b):
        if seats[a] == 1:
            continue  # each keeps its first
        now = abs(seats[a] / share[a] - seats[b] / share[b])
        moved = abs((seats[a] - 1) / share[a] - (seats[b] + 1) / share[b])
        assert now <= moved + 1e-9


def test_fewer_seats_than_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="2 seats for 3 groups"):
        apportion(2, [1, 1, 1])
