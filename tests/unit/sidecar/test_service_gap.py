"""The gap between tenants that waited throughout a window."""

from __future__ import annotations

from tidegate_sidecar.service_gap import ServiceGap

from tidegate.scheduling.contracts import FairnessUnit
from tidegate.scheduling.snapshots import Backlog

TOKENS = FairnessUnit.TOKENS


def row(tenant: str, given: float, **members: object) -> Backlog:
    return Backlog(tenant, "t", TOKENS, 1, 1, given)._replace(**members)


def gap(before: list[Backlog], after: list[Backlog]) -> dict[str, float]:
    told = [before, after]
    meter = ServiceGap(lambda: told.pop(0))
    meter.window_ended()
    assert meter.by_tier == {}
    meter.window_ended()
    return meter.by_tier


def test_what_two_were_given_is_compared_by_weight() -> None:
    before = [row("a", 100), row("b", 0, weight=4)]
    assert gap(before, [row("a", 600), row("b", 1_600, weight=4)]) == {"t": 100.0}


def test_who_did_not_wait_all_the_time_is_no_party_to_it() -> None:
    before = [row("a", 0), row("b", 0), row("c", 0)]
    after = [row("a", 500), row("b", 0, backlogs=2), row("d", 0)]
    assert gap(before, after) == {}


def test_each_tier_is_by_itself_and_a_tenant_that_moved_begins_anew() -> None:
    before = [row("a", 0), row("b", 0), row("x", 0, tier="u"), row("y", 0, tier="u")]
    after = [row("a", 9, tier="u"), row("b", 1), row("x", 2, tier="u"), row("y", 5, tier="u")]
    assert gap(before, after) == {"u": 3.0}
