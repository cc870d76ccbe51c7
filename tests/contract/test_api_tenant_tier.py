"""What the API server accepts and refuses of a TenantTier."""

from typing import Any

import pytest
from support.crd_api import ABSENT, Api, changed, example

pytestmark = pytest.mark.contract

MINIMAL = {
    "apiVersion": "tidegate.io/v1alpha1",
    "kind": "TenantTier",
    "metadata": {"name": "minimal"},
    "spec": {"allowedNamespaces": {}},
}

ACCEPTED: dict[str, dict[str, Any]] = {
    "as documented": {},
    "negative priority": {"spec.priority": -(2**31)},
    "highest priority": {"spec.priority": 2**31 - 1},
    "nothing reserved": {"spec.reservedPercent": 0},
    "all reserved": {"spec.reservedPercent": 100, "spec.maxPercent": 100},
    "reserved without a maximum": {"spec.reservedPercent": 100, "spec.maxPercent": ABSENT},
    "output default alone": {"spec.output": {"default": 10_000_000}},
    "output default equal to max": {"spec.output": {"default": 8, "max": 8}},
    "empty objects": {
        "spec.output": {},
        "spec.fairness": {},
        "spec.queue": {},
        "spec.slo": {},
        "spec.preemption": {"recomputeBackoff": {}},
        "spec.rateLimits": [],
        "spec.tenantOverrides": {},
    },
    "every unit": {"spec.fairness": {"unit": "Tokens"}},
    "highest weight": {"spec.weight": 1000},
    "prompts by time alone": {"spec.promptLimit": {"maxPrefillTime": "1h30m"}},
    "prompts cut off": {"spec.promptLimit": {"maxTokens": 1, "onExceed": "Truncate"}},
    "prompts served last": {"spec.promptLimit": {"maxTokens": 1, "onExceed": "BestEffort"}},
    "16 rate limits": {
        "spec.rateLimits": [{"name": f"l{n}", "requests": 1, "per": "Hour"} for n in range(16)]
    },
    "all metrics": {
        "spec.slo": {
            "objectives": [
                {"metric": "TimeToFirstToken", "target": "1ms", "ratio": "100"},
                {"metric": "EndToEnd", "target": "24h", "ratio": "100.000"},
                {"metric": "InterTokenLatency", "target": "50ms", "ratio": "0.001"},
            ]
        }
    },
    "evictable without a pause": {
        "spec.preemption": {
            "evictable": True,
            "recomputeBackoff": {"perQueuedRequest": "0s", "max": "0s"},
            "maxPerRequest": 0,
        }
    },
    "limits of one's own": {"spec.tenantOverrides": {"rateLimits": "Any"}},
    "longest name": {"metadata.name": "n" * 40},
    "longest wait": {"spec.queue.maxWait": "24h"},
    "shortest wait": {"spec.queue.maxWait": "1ms"},
    "wait of several units": {"spec.queue.maxWait": "1h30m5s250ms"},
    "all namespaces": {"spec.allowedNamespaces": {}},
    "namespaces by expression": {
        "spec.allowedNamespaces": {
            "matchExpressions": [
                {"key": "example.com/plan", "operator": "In", "values": ["paid", ""]},
                {"key": "suspended", "operator": "DoesNotExist"},
            ]
        }
    },
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no allowedNamespaces": (
        {"spec.allowedNamespaces": ABSENT},
        "spec.allowedNamespaces: Required value",
    ),
    "no spec": ({"spec": ABSENT}, "spec: Required value"),
    "name of 41": ({"metadata.name": "n" * 41}, "metadata.name must be at most 40 characters"),
    "priority beyond int32": (
        {"spec.priority": 2**31},
        "should be less than or equal to 2147483647",
    ),
    "priority of text": (
        {"spec.priority": "high"},
        "spec.priority in body must be of type integer",
    ),
    "share with a fraction": (
        {"spec.reservedPercent": 33.3},
        "spec.reservedPercent in body must be of type int",
    ),
    "reserved above 100": ({"spec.reservedPercent": 101}, "less than or equal to 100"),
    "reserved below 0": ({"spec.reservedPercent": -1}, "greater than or equal to 0"),
    "maximum of 0": ({"spec.maxPercent": 0}, "spec.maxPercent"),
    "reserved above the maximum": (
        {"spec.reservedPercent": 50, "spec.maxPercent": 40},
        "reservedPercent must not be above maxPercent",
    ),
    "no output at all": ({"spec.output.max": 0}, "spec.output.max"),
    "output default above max": (
        {"spec.output": {"default": 9, "max": 8}},
        "spec.output.default: Invalid value: output.default must not be above output.max",
    ),
    "nothing in flight": ({"spec.maxInFlight": 0}, "spec.maxInFlight"),
    "unit of another kind": (
        {"spec.fairness.unit": "Seconds"},
        'supported values: "Requests", "Tokens", "EngineTime"',
    ),
    "weight of 0": ({"spec.weight": 0}, "spec.weight"),
    "weight of 1001": ({"spec.weight": 1001}, "less than or equal to 1000"),
    "prompt limit of nothing": (
        {"spec.promptLimit": {"onExceed": "Truncate"}},
        "spec.promptLimit: Invalid value: needs maxTokens, maxPrefillTime, or both",
    ),
    "prompt of no token": ({"spec.promptLimit": {"maxTokens": 0}}, "spec.promptLimit.maxTokens"),
    "prefill of no time": (
        {"spec.promptLimit": {"maxPrefillTime": "0s"}},
        "must be from 1ms to 24h",
    ),
    "prompt that is dropped": (
        {"spec.promptLimit": {"maxTokens": 1, "onExceed": "Drop"}},
        'supported values: "Reject", "Truncate", "BestEffort"',
    ),
    "rate limit of nothing": (
        {"spec.rateLimits": [{"name": "a", "per": "Day"}]},
        "spec.rateLimits[0]: Invalid value: needs requests, tokens, or both",
    ),
    "rate limit without a window": (
        {"spec.rateLimits": [{"name": "a", "tokens": 1}]},
        "spec.rateLimits[0].per: Required value",
    ),
    "rate limit per week": (
        {"spec.rateLimits": [{"name": "a", "tokens": 1, "per": "Week"}]},
        'supported values: "Minute", "Hour", "Day", "Month"',
    ),
    "rate limit of 0": (
        {"spec.rateLimits": [{"name": "a", "requests": 0, "per": "Day"}]},
        "spec.rateLimits[0].requests",
    ),
    "rate limit of no endpoint": (
        {"spec.rateLimits": [{"name": "a", "tokens": 1, "per": "Day", "endpoints": []}]},
        "spec.rateLimits[0].endpoints",
    ),
    "rate limit of an unknown endpoint": (
        {"spec.rateLimits": [{"name": "a", "tokens": 1, "per": "Day", "endpoints": ["Images"]}]},
        "supported values",
    ),
    "rate limits of one name": (
        {
            "spec.rateLimits": [
                {"name": "a", "tokens": 1, "per": "Day"},
                {"name": "a", "tokens": 2, "per": "Hour"},
            ]
        },
        "Duplicate value",
    ),
    "17 rate limits": (
        {"spec.rateLimits": [{"name": f"l{n}", "tokens": 1, "per": "Day"} for n in range(17)]},
        "must have at most 16 items",
    ),
    "objective without a target": (
        {"spec.slo": {"objectives": [{"metric": "EndToEnd"}]}},
        "spec.slo.objectives[0].target: Required value",
    ),
    "objective without a metric": (
        {"spec.slo": {"objectives": [{"target": "1s"}]}},
        "spec.slo.objectives[0].metric: Required value",
    ),
    "two targets of one metric": (
        {"spec.slo": {"objectives": [{"metric": "EndToEnd", "target": "1s"}] * 2}},
        "Duplicate value",
    ),
    "ratio as a number": (
        {"spec.slo.objectives.0.ratio": 99.5},
        "spec.slo.objectives[0].ratio in body must be of type string",
    ),
    "ratio above 100": (
        {"spec.slo.objectives.0.ratio": "100.1"},
        "spec.slo.objectives[0].ratio in body should match",
    ),
    "ratio of nothing": ({"spec.slo.objectives.0.ratio": "0.00"}, "must be above 0"),
    "window of a second": ({"spec.slo.objectives.0.window": "1s"}, "must be from 1m to 8760h"),
    "back-off of two minutes": (
        {"spec.preemption": {"recomputeBackoff": {"perQueuedRequest": "2m"}}},
        "must be from 0s to 1m",
    ),
    "preempted 1001 times": ({"spec.preemption.maxPerRequest": 1001}, "maxPerRequest"),
    "limits of one's own as one likes": (
        {"spec.tenantOverrides.rateLimits": "Loosen"},
        'supported values: "Tighten", "Any"',
    ),
    "quantum of 0": ({"spec.fairness.quantum": 0}, "spec.fairness.quantum"),
    "no queue": ({"spec.queue.maxRequests": 0}, "spec.queue.maxRequests"),
    "a queue too small for any body": ({"spec.queue.maxBytes": 1023}, "spec.queue.maxBytes"),
    "wait without unit": ({"spec.queue.maxWait": "30"}, "spec.queue.maxWait in body should match"),
    "wait in days": ({"spec.queue.maxWait": "1d"}, "spec.queue.maxWait in body should match"),
    "wait of a number": ({"spec.queue.maxWait": 30}, "must be of type string"),
    "wait of nothing": ({"spec.queue.maxWait": "0s"}, "must be from 1ms to 24h"),
    "wait of more than a day": ({"spec.queue.maxWait": "25h"}, "must be from 1ms to 24h"),
    "weight beyond 1000": ({"spec.tenantOverrides.maxWeight": 1001}, "maxWeight"),
    "selector operator": (
        {"spec.allowedNamespaces": {"matchExpressions": [{"key": "a", "operator": "Like"}]}},
        'supported values: "In", "NotIn", "Exists", "DoesNotExist"',
    ),
    "In without values": (
        {"spec.allowedNamespaces": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
        "values is for the operators In and NotIn, which need at least one",
    ),
    "Exists with values": (
        {
            "spec.allowedNamespaces": {
                "matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]
            }
        },
        "values is for the operators In and NotIn, which need at least one",
    ),
    "label key with a blank": (
        {"spec.allowedNamespaces": {"matchExpressions": [{"key": "a b", "operator": "Exists"}]}},
        "key in body should match",
    ),
}


def test_minimal_is_accepted(api: Api) -> None:
    api.create(MINIMAL, dry_run=True).ok()


@pytest.mark.parametrize("changes", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(api: Api, changes: dict[str, Any]) -> None:
    answer = api.create(changed(example("TenantTier", "tier"), changes), dry_run=True)
    answer.ok()
    assert answer.warnings == ()


@pytest.mark.parametrize(("changes", "said"), REFUSED.values(), ids=REFUSED)
def test_refused(api: Api, changes: dict[str, Any], said: str) -> None:
    answer = api.create(changed(example("TenantTier", "tier"), changes), dry_run=True)
    assert answer.status == 422
    assert said in answer.message
