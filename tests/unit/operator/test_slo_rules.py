"""The rules of a pool as objects; what they mean is tests/integration/monitoring's to judge."""

from __future__ import annotations

import json

from support.custom_resources import pool
from tidegate_operator import api
from tidegate_operator.api.common import parse
from tidegate_operator.names import pool_labels
from tidegate_operator.slo import prometheus_rule, rule_groups
from tidegate_operator.slo.windows import promql_duration

from tidegate.scheduling.contracts import SloMetric, SloObjective, TierPolicy

TTFT = SloObjective(SloMetric.TIME_TO_FIRST_TOKEN, 0.5, 99.5, 720 * 3600)
ITL = SloObjective(SloMetric.INTER_TOKEN_LATENCY, 0.05, 99.9, 90 * 60)
TIERS = (TierPolicy("t0", slo_objectives=(TTFT, ITL)), TierPolicy("free"))


def test_the_rule_is_the_pools_own_and_carries_the_labels_asked_for() -> None:
    served = parse(api.ServingPool, pool())
    assert isinstance(served, api.ServingPool)
    asked = {"release": "prom", "tidegate.io/pool": "another"}
    rule = prometheus_rule(served, TIERS, asked, "https://runbooks")
    assert rule is not None
    metadata = rule["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("chat", served.metadata.namespace)
    assert metadata["labels"] == {"release": "prom"} | pool_labels("chat")
    assert metadata["ownerReferences"][0]["uid"] == served.metadata.uid
    assert prometheus_rule(served, TIERS[1:], asked, "https://runbooks") is None


def test_every_rule_says_whose_it_is_and_every_alert_what_to_do() -> None:
    groups = rule_groups("team", "chat", TIERS, "https://runbooks")
    assert len({group["name"] for group in groups}) == len(groups)
    recorded = set()
    for rule in (rule for group in groups for rule in group["rules"]):
        if "record" in rule:
            labels = rule["labels"]
            assert (labels["namespace"], labels["tidegate_io_pool"]) == ("team", "chat")
            assert labels["sloth_id"] == f"team/chat-{labels['tier']}-{labels['objective']}"
            series = rule["record"], json.dumps(labels, sort_keys=True)
            assert series not in recorded
            recorded.add(series)
        else:
            assert rule["labels"]["severity"] in ("page", "ticket")
            assert rule["annotations"]["runbook_url"].startswith("https://runbooks/")
    assert "free" not in json.dumps(groups)


def test_the_pools_of_one_file_share_no_group_and_no_series() -> None:
    """`a-b/c` and `a/b-c` would be one, joined by a dash, and so would pool and tier."""
    other = (TierPolicy("c-t0", slo_objectives=(TTFT,)),)
    groups = [
        group
        for namespace, name, tiers in (("a-b", "c", TIERS), ("a", "b-c", TIERS), ("a", "b", other))
        for group in rule_groups(namespace, name, tiers, "")
    ]
    names = [group["name"] for group in groups]
    assert len(set(names)) == len(names)
    budgets = [
        rule["expr"]
        for group in groups
        for rule in group["rules"]
        if rule.get("record") == "slo:current_burn_rate:ratio"
    ]
    assert len(set(budgets)) == len(budgets) == 5


def test_durations_as_promql_writes_them() -> None:
    for seconds, text in ((720 * 3600, "30d"), (36 * 3600, "36h"), (5400, "90m"), (61, "61s")):
        assert promql_duration(seconds) == text
