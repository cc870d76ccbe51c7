"""What the API server accepts and refuses of a Tenant."""

from typing import Any

import pytest
from support.crd_api import ABSENT, Api, changed, example

pytestmark = pytest.mark.contract

SHA = "0123456789abcdef" * 4
ONE_OF = "needs exactly one of sha256 and secretRef"

ACCEPTED: dict[str, dict[str, Any]] = {
    "as documented": {},
    "tier alone": {"spec": {"tierRef": {"name": "t0"}}},
    "no key yet": {"spec.apiKeys": []},
    "32 keys": {"spec.apiKeys": [{"name": f"k{n}", "sha256": SHA} for n in range(32)]},
    "highest weight": {"spec.weight": 1000},
    "held": {"spec.stop": "Hold"},
    "held and drained": {"spec.stop": "HoldAndDrain"},
    "longest name": {"metadata.name": "n" * 40},
    "a cache of its own": {"spec.prefixCache": "Isolated"},
    "a group's cache": {"spec.prefixCache": "team-apps"},
    "no limits of its own": {"spec.rateLimits": []},
    "64 models": {"spec.models": [f"m{n}" for n in range(64)]},
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no tier": ({"spec.tierRef": ABSENT}, "spec.tierRef: Required value"),
    "tier without a name": ({"spec.tierRef": {}}, "spec.tierRef.name: Required value"),
    "tier with an impossible name": (
        {"spec.tierRef.name": "T0"},
        "spec.tierRef.name in body should match",
    ),
    "name of 41": ({"metadata.name": "n" * 41}, "metadata.name must be at most 40 characters"),
    "weight of 0": ({"spec.weight": 0}, "spec.weight in body should be greater than or equal to 1"),
    "weight of 1001": ({"spec.weight": 1001}, "less than or equal to 1000"),
    "weight with a fraction": ({"spec.weight": 1.5}, "spec.weight in body must be of type int"),
    "key in clear": (
        {"spec.apiKeys.0.sha256": "demo-a"},
        "spec.apiKeys[0].sha256 in body should match",
    ),
    "hash in capitals": ({"spec.apiKeys.0.sha256": SHA.upper()}, "sha256 in body should match"),
    "key that is nowhere": ({"spec.apiKeys.0": {"name": "k"}}, ONE_OF),
    "key at two places": (
        {"spec.apiKeys.0.secretRef": {"name": "s", "key": "k"}},
        ONE_OF,
    ),
    "key without a name": ({"spec.apiKeys.0.name": ABSENT}, "spec.apiKeys[0].name: Required value"),
    "two keys of one name": (
        {"spec.apiKeys": [{"name": "k", "sha256": SHA}, {"name": "k", "sha256": SHA}]},
        "Duplicate value",
    ),
    "33 keys": (
        {"spec.apiKeys": [{"name": f"k{n}", "sha256": SHA} for n in range(33)]},
        "must have at most 32 items",
    ),
    "secret without a key": (
        {"spec.apiKeys.1.secretRef": {"name": "s"}},
        "spec.apiKeys[1].secretRef.key: Required value",
    ),
    "secret key with a slash": (
        {"spec.apiKeys.1.secretRef": {"name": "s", "key": "../x"}},
        "secretRef.key in body should match",
    ),
    "rate limit of nothing": (
        {"spec.rateLimits": [{"name": "a", "per": "Day"}]},
        "spec.rateLimits[0]: Invalid value: needs requests, tokens, or both",
    ),
    "rate limits of one name": (
        {"spec.rateLimits": [{"name": "a", "tokens": 1, "per": "Day"}] * 2},
        "Duplicate value",
    ),
    "a cache group in capitals": (
        {"spec.prefixCache": "Shared"},
        "spec.prefixCache in body should match",
    ),
    "no model at all": ({"spec.models": []}, "spec.models in body should have at least 1 items"),
    "a model twice": ({"spec.models": ["m", "m"]}, "Duplicate value"),
    "a model with a blank": ({"spec.models": ["a b"]}, "spec.models[0] in body should match"),
    "stop of another kind": (
        {"spec.stop": "Drain"},
        'supported values: "None", "Hold", "HoldAndDrain"',
    ),
}


@pytest.mark.parametrize("changes", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(api: Api, changes: dict[str, Any]) -> None:
    answer = api.create(changed(example("Tenant", "tenant"), changes), dry_run=True)
    answer.ok()
    assert answer.warnings == ()


@pytest.mark.parametrize(("changes", "said"), REFUSED.values(), ids=REFUSED)
def test_refused(api: Api, changes: dict[str, Any], said: str) -> None:
    answer = api.create(changed(example("Tenant", "tenant"), changes), dry_run=True)
    assert answer.status == 422
    assert said in answer.message
