"""Which pod a router chooses, when it rests one, and what queued requests move."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from tidegate_sidecar.router.balancer import SLACK, choose
from tidegate_sidecar.router.breaker import FAILURES, LONGEST_REST_SECONDS, REST_SECONDS, Breaker
from tidegate_sidecar.router.spread import to_hand_back


@dataclass
class Pod:
    name: str
    outstanding_tokens: int = 0


def pods(*loads: int) -> list[Pod]:
    return [Pod(f"pod-{number}", load) for number, load in enumerate(loads)]


def test_without_affinity_the_least_loaded_is_chosen_and_equals_take_turns() -> None:
    assert choose(pods(30, 10, 20), None, 5).name == "pod-1"  # type: ignore[union-attr]
    chosen = Counter(choose(pods(0, 0, 0), None, 5, turn).name for turn in range(9))  # type: ignore[union-attr]
    assert set(chosen.values()) == {3}
    assert choose([], None, 5) is None


def test_a_session_stays_on_its_pod_while_that_has_not_much_more_to_do() -> None:
    idle = pods(0, 0, 0, 0)
    home = choose(idle, b"session", 100)
    assert home is not None
    assert {choose(idle, b"session", 100, turn).name for turn in range(8)} == {home.name}  # type: ignore[union-attr]
    home.outstanding_tokens = 1_000
    elsewhere = choose(idle, b"session", 100)
    assert elsewhere is not None
    assert elsewhere is not home, "affinity never makes a request wait behind a long queue"


def test_a_pod_that_leaves_moves_only_its_own_sessions() -> None:
    sessions = [f"s{number}".encode() for number in range(400)]
    four = pods(0, 0, 0, 0)
    before = {s: choose(four, s, 0).name for s in sessions}  # type: ignore[union-attr]
    after = {s: choose(four[1:], s, 0).name for s in sessions}  # type: ignore[union-attr]
    assert all(after[s] == before[s] for s in sessions if before[s] != "pod-0")
    assert len(set(before.values())) == 4


@given(
    loads=st.lists(st.integers(0, 10_000), min_size=1, max_size=8),
    key=st.binary(max_size=8),
    tokens=st.integers(0, 10_000),
)
def test_affinity_is_bounded(loads: list[int], key: bytes, tokens: int) -> None:
    among = pods(*loads)
    chosen = choose(among, key, tokens)
    assert chosen is not None
    assert chosen.outstanding_tokens <= (1 + SLACK) * sum(loads) / len(loads) + tokens


def opened(now: float) -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES):
        assert breaker.closed(now)
        breaker.failed(now, breaker.sent(now))
    return breaker


def test_a_pod_that_fails_rests_longer_each_time_and_one_request_tries_it() -> None:
    now = 0.0
    breaker, rest = opened(now), REST_SECONDS
    for _ in range(10):
        assert not breaker.closed(now + rest * 0.99)
        now += rest
        assert breaker.closed(now)
        trial = breaker.sent(now)
        assert not breaker.closed(now), "one trial a rest"
        breaker.failed(now, trial)
        rest = min(LONGEST_REST_SECONDS, 2 * rest)
    now += rest
    breaker.sent(now)
    breaker.succeeded()
    assert breaker.closed(now)


def test_a_trial_without_an_answer_keeps_a_pod_for_one_rest() -> None:
    breaker = opened(0.0)
    assert breaker.sent(REST_SECONDS)
    assert not breaker.closed(1.9 * REST_SECONDS)
    assert breaker.closed(2.0 * REST_SECONDS), "it may be one that takes minutes"


def test_many_that_fail_at_once_make_no_longer_rest() -> None:
    breaker = Breaker()
    trials = [breaker.sent(0.0) for _ in range(100)]
    for trial in trials:
        breaker.failed(0.0, trial)
    assert breaker.closed(REST_SECONDS), "a pod that is back is tried"


def test_queues_even_out_onto_a_free_pod() -> None:
    assert to_hand_back({"a": 500, "b": 0}) == {"a": 250}
    assert to_hand_back({"a": 500}) == {}
    assert to_hand_back({"a": 5, "b": 3}) == {}, "no pod is free"
    assert to_hand_back({"a": 1, "b": 0}) == {}, "one request is not sent to and fro"
    assert to_hand_back({"a": 0, "b": 0}) == {}


@given(queued=st.dictionaries(st.text(max_size=3), st.integers(0, 500), max_size=6))
def test_no_more_is_handed_back_than_makes_the_queues_even(queued: dict[str, int]) -> None:
    moves = to_hand_back(queued)
    for pod, count in moves.items():
        assert 0 < count <= queued[pod]
        assert (queued[pod] - count) * len(queued) >= sum(queued.values()) - len(queued) + 1
