"""What the API server accepts and refuses of how a ServingPool shares its engines."""

from typing import Any

import pytest
from support.crd_api import ABSENT, Api, changed, example

pytestmark = pytest.mark.contract


def parts(*lists: list[str], percent: int = 10) -> list[dict[str, Any]]:
    return [
        {"name": f"p{place}", "tiers": tiers, "percent": percent}
        for place, tiers in enumerate(lists)
    ]


TIERS = [f"t{n}" for n in range(64)]

ACCEPTED: dict[str, dict[str, Any]] = {
    "nothing said": {
        "spec.kvPools": ABSENT,
        "spec.prefill": ABSENT,
        "spec.betweenTiers": ABSENT,
    },
    "nothing in them": {"spec.kvPools": [], "spec.prefill": {}},
    "all of the cache": {"spec.kvPools": parts(["t0"], ["t3"], percent=50)},
    "none of the cache": {"spec.kvPools": parts(["t0"], percent=0)},
    "all of it lent": {"spec.kvPools.0.lendablePercent": 70},
    "nothing lent or borrowed": {
        "spec.kvPools.0.lendablePercent": 0,
        "spec.kvPools.0.borrowLimitPercent": 0,
    },
    "all tiers in 16 parts": {
        "spec.tiers": ABSENT,
        "spec.kvPools": parts(*(TIERS[n::16] for n in range(16)), percent=6),
    },
    "tiers that may not exist": {"spec.tiers": ABSENT},
    "budget in tokens": {"spec.prefill": {"tokensPerStep": 1, "chunkTokens": 1}},
    "budget without the plug-in": {
        "spec.engine.plugin": "Disabled",
        "spec.prefill": {"budgetPercent": 30, "chunkTokens": 512},
    },
    "unusual budget": {"spec.prefill": {"budgetPercent": 100}},
    "long prompts of any length": {"spec.prefill.longPromptTokens": 1},
    "steered in the engine": {"spec.engine.plugin": "Enabled"},
    "not steered in the engine": {"spec.engine.plugin": "Disabled", "spec.prefill": ABSENT},
    "by priority": {"spec.betweenTiers": "Strict"},
    "promises taken back": {"spec.tiers.0.slo": {}},
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "more than all of the cache": (
        {"spec.kvPools": parts(["t0"], ["t3"], percent=51)},
        "the percents of all kvPools sum to more than 100",
    ),
    "a tier in two parts": (
        {"spec.kvPools": parts(["t0"], ["t3", "t0"])},
        "a tier is in more than one of kvPools; it may be in one",
    ),
    "a tier twice in a part": ({"spec.kvPools": parts(["t0", "t0"])}, "Duplicate value"),
    "a tier that is not served here": (
        {"spec.kvPools": parts(["t0", "t1"])},
        "kvPools names a tier that is not in tiers, so that it is not served here",
    ),
    "a part of nobody": ({"spec.kvPools": parts([])}, "tiers in body should have at least 1 items"),
    "a part of no size": (
        {"spec.kvPools": [{"name": "p", "tiers": ["t0"]}]},
        "spec.kvPools[0].percent: Required value",
    ),
    "two parts of one name": (
        {"spec.kvPools": [*parts(["t0"]), *parts(["t3"])]},
        "Duplicate value",
    ),
    "17 parts": (
        {"spec.tiers": ABSENT, "spec.kvPools": parts(*([t] for t in TIERS[:17]), percent=1)},
        "must have at most 16 items",
    ),
    "more lent than owned": (
        {"spec.kvPools.0.lendablePercent": 71},
        "spec.kvPools[0].lendablePercent: Invalid value: lendablePercent must not be above percent",
    ),
    "fraction of a percent": (
        {"spec.kvPools.0.percent": 0.7},
        "spec.kvPools[0].percent in body must be of type int",
    ),
    "two budgets": (
        {"spec.prefill": {"budgetPercent": 30, "tokensPerStep": 2048}},
        "spec.prefill: Invalid value: has both budgetPercent and tokensPerStep",
    ),
    "no budget": ({"spec.prefill": {"budgetPercent": 0}}, "spec.prefill.budgetPercent"),
    "more than a step": ({"spec.prefill": {"budgetPercent": 101}}, "spec.prefill.budgetPercent"),
    "chunks of nothing": ({"spec.prefill": {"chunkTokens": 0}}, "spec.prefill.chunkTokens"),
    "every prompt a long one": (
        {"spec.prefill.longPromptTokens": 0},
        "spec.prefill.longPromptTokens",
    ),
    "a plug-in for embeddings": (
        {
            "spec.model.task": "Embed",
            "spec.kvPools": ABSENT,
            "spec.prefill": ABSENT,
            "spec.engine.plugin": "Enabled",
        },
        "engine.plugin is for models that generate",
    ),
    "a scheduler by argument": (
        {"spec.engine.args": ["--additional_config={}"]},
        "use spec.engine.plugin",
    ),
    "long prompts without the plug-in": (
        {"spec.engine.plugin": ABSENT, "spec.prefill": {"longPromptTokens": 4096}},
        "longPromptTokens needs engine.plugin: Enabled",
    ),
    "cache of embeddings": (
        {"spec.model.task": "Embed", "spec.prefill": ABSENT},
        "kvPools is for models that generate",
    ),
    "prefill of embeddings": (
        {"spec.model.task": "Embed", "spec.kvPools": ABSENT},
        "prefill is for models that generate",
    ),
    "chunks by argument": (
        {"spec.engine.args": ["--long-prefill-token-threshold=512"]},
        "use spec.prefill.chunkTokens",
    ),
    "prompt limit of nothing here": (
        {"spec.tiers.0.promptLimit": {}},
        "needs maxTokens, maxPrefillTime, or both",
    ),
}


@pytest.mark.parametrize("changes", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(api: Api, changes: dict[str, Any]) -> None:
    answer = api.create(changed(example("ServingPool", "pool"), changes), dry_run=True)
    answer.ok()
    assert answer.warnings == ()


@pytest.mark.parametrize(("changes", "said"), REFUSED.values(), ids=REFUSED)
def test_refused(api: Api, changes: dict[str, Any], said: str) -> None:
    answer = api.create(changed(example("ServingPool", "pool"), changes), dry_run=True)
    assert answer.status == 422
    assert said in answer.message
