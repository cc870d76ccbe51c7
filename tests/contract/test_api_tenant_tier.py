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
    "empty objects": {"spec.output": {}, "spec.fairness": {}, "spec.queue": {}},
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
    "unit of a later version": (
        {"spec.fairness.unit": "EngineTime"},
        'supported values: "Requests", "Tokens"',
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
