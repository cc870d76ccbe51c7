"""What pods tell that a person should know: warnings' texts, and events of slow traffic."""

from __future__ import annotations

from support.custom_resources import pool
from tidegate_operator.events import SAMPLE_NEWS_SECONDS, sample_events
from tidegate_operator.pod_reports import samples, unread_engines
from tidegate_operator.pool_state import PodState

from tidegate.scheduling.contracts import EngineStatus, SidecarStatus, TrafficSample

AT = 1_800_000_000.0
SAMPLE = TrafficSample("traffic-20270115T080000Z-t0-1.jsonl", "t0", AT, 3.42)


def told(
    pod: str, engine: EngineStatus | None = None, sample: TrafficSample | None = None
) -> tuple[PodState, SidecarStatus]:
    state = PodState(f"uid-{pod}", pod, "10.0.0.1", ready=True, terminating=False)
    return state, SidecarStatus(1, "acme/chat", 1.0, 1, engine=engine, last_sample=sample)


def test_r3_an_engine_that_does_not_say_how_full_it_is_is_named() -> None:
    known = EngineStatus(ready=True)
    unread = EngineStatus(ready=True, metrics_error="GET /metrics answers 404")
    pods = [told("chat-0", known), told("chat-1", unread), told("chat-2")]
    assert unread_engines(pods) == ("pod chat-1: GET /metrics answers 404",)


def test_a_sample_is_an_event_of_its_pool_by_one_name() -> None:
    pods = [told("chat-0", sample=SAMPLE), told("chat-1")]
    (event,) = sample_events(pool(), samples(pods), AT + 65.0)
    assert event["metadata"] == {"name": "chat.sample.chat-0.6b49d200", "namespace": "acme"}
    assert event["involvedObject"]["kind"] == "ServingPool"
    assert (event["type"], event["reason"]) == ("Warning", "FirstTokensSlow")
    assert event["firstTimestamp"] == "2027-01-15T08:00:00Z"
    assert event["message"] == (
        "First tokens of tier t0 come 3.4 times as late as in the last hour on pod chat-0 (99th "
        "percentiles); its port 8001 has a sample of the traffic: GET "
        "/profiles/traffic-20270115T080000Z-t0-1.jsonl"
    )
    assert sample_events(pool(), samples(pods), AT + 500.0) == [event]


def test_an_old_sample_is_no_news() -> None:
    """An operator that starts anew would tell it again once the API server forgot the event."""
    pods = [told("chat-0", sample=SAMPLE)]
    assert sample_events(pool(), samples(pods), AT + SAMPLE_NEWS_SECONDS + 1.0) == []
