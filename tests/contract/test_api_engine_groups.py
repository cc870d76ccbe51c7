"""What the API server accepts and refuses of a ServingPool's engine groups."""

from typing import Any

import pytest
from support.crd_api import ABSENT, Api, changed, example

pytestmark = pytest.mark.contract

NGRAM = {"method": "Ngram", "tokens": 4}
HEAD = {"method": "Eagle3", "model": "acme/chat-head", "tokens": 3}


def groups(*names: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": name, **fields} for name in names]


ACCEPTED: dict[str, dict[str, Any]] = {
    "one group": {"spec.engineGroups": groups("chat")},
    "eight groups": {"spec.engineGroups": groups(*(f"g{n}" for n in range(8)), share=1000)},
    "tiers at home": {
        "spec.engineGroups": [{"name": "a", "tiers": ["t0"]}, {"name": "b", "tiers": ["t3"]}]
    },
    "tiers of nobody": {"spec.engineGroups": groups("a", tiers=[], noDraftTiers=[])},
    "drafts of all kinds": {
        "spec.engineGroups": [
            {"name": "a", "draft": NGRAM},
            {"name": "b", "draft": HEAD},
            {"name": "c", "draft": {"method": "Eagle", "model": "/volumes/head", "tokens": 1}},
            {"name": "d", "draft": {"method": "Medusa", "model": "a/b", "tokens": 64}},
            {"name": "e", "draft": {"method": "Mtp", "tokens": 1}},
            {"name": "f", "draft": {"method": "Mtp", "model": "a/b", "tokens": 1}},
            {"name": "g", "draft": {"method": "DraftModel", "model": "s3://a/b", "tokens": 5}},
        ]
    },
    "longest names": {
        "metadata.name": "p" * 32,
        "spec.engineGroups": groups("g" * 19),
    },
    "a tier without drafts": {
        "spec.engine.plugin": "Enabled",
        "spec.engineGroups": groups("a", tiers=["t0", "t3"], draft=HEAD, noDraftTiers=["t3"]),
    },
    "what may spill and what not": {
        "spec.router": {},
        "spec.engineGroups": [
            {"name": "a", "spill": "Never"},
            {"name": "b", "spill": "WhenIdle"},
        ],
    },
    "a fallback": {"spec.router": {}, "spec.fallback": {"tiers": ["t0", "t3"]}},
    "a fallback of other engines": {
        "spec.router": {},
        "spec.fallback": {
            "tiers": ["t0"],
            "replicas": 0,
            "engine": {
                "image": "vllm/vllm-openai:v0.32.0",
                "parallelism": {"tensor": 1},
                "resources": {"limits": {"nvidia.com/gpu": 1}},
                "args": ["--max-num-seqs=16"],
                "plugin": "Disabled",
                "nodeSelector": {},
                "tolerations": [],
            },
        },
    },
    "flags that begin like drafts": {"spec.engine.args": ["--specialize-active-lora"]},
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "spill without a router": (
        {"spec.engineGroups": groups("a", "b", spill="WhenIdle")},
        "spill needs a router: without one nothing moves a request to another group",
    ),
    "spill of a way that there is not": (
        {"spec.router": {}, "spec.engineGroups": groups("a", spill="Always")},
        "spill",
    ),
    "a fallback without a router": (
        {"spec.fallback": {"tiers": ["t0"]}},
        "fallback needs a router: without one nothing sends it requests",
    ),
    "a fallback for nobody": (
        {"spec.router": {}, "spec.fallback": {"tiers": []}},
        "should have at least 1 items",
    ),
    "a fallback for a tier that is not served here": (
        {"spec.router": {}, "spec.fallback": {"tiers": ["t1"]}},
        "fallback names a tier that is not in tiers",
    ),
    "a fallback with a flag of ours": (
        {
            "spec.router": {},
            "spec.fallback": {"tiers": ["t0"], "engine": {"args": ["--port=1"]}},
        },
        "cannot be set here",
    ),
    "no group": ({"spec.engineGroups": []}, "should have at least 1 items"),
    "nine groups": (
        {"spec.engineGroups": groups(*(f"g{n}" for n in range(9)))},
        "must have at most 8 items",
    ),
    "two of one name": ({"spec.engineGroups": groups("a", "a")}, "Duplicate value"),
    "a name with a dot": ({"spec.engineGroups": groups("a.b")}, "name in body should match"),
    "a name of 21": ({"spec.engineGroups": groups("g" * 21)}, "may not be more than 20"),
    "a name of another child": (
        {"spec.engineGroups": groups("router")},
        "main, engines, router, fallback name other children of a pool; take another",
    ),
    "names too long together": (
        {"metadata.name": "p" * 33, "spec.engineGroups": groups("g" * 19)},
        "have at most 52 characters: they name a StatefulSet",
    ),
    "a tier with two homes": (
        {"spec.engineGroups": groups("a", "b", tiers=["t0"])},
        "a tier is in more than one of engineGroups; it has one home",
    ),
    "a tier that is not served here": (
        {"spec.engineGroups": groups("a", tiers=["t1"])},
        "engineGroups names a tier that is not in tiers",
    ),
    "a share of nothing": ({"spec.engineGroups": groups("a", share=0)}, "share"),
    "a head without a model": (
        {"spec.engineGroups": groups("a", draft={"method": "Eagle3", "tokens": 3})},
        "this method needs model",
    ),
    "a prompt's words with a model": (
        {"spec.engineGroups": groups("a", draft=NGRAM | {"model": "a/b"})},
        "Ngram drafts from the prompt itself and takes no model",
    ),
    "a model that is a flag": (
        {"spec.engineGroups": groups("a", draft=HEAD | {"model": "--port=1"})},
        "draft.model in body should match",
    ),
    "drafts of no token": (
        {"spec.engineGroups": groups("a", draft=HEAD | {"tokens": 0})},
        "tokens",
    ),
    "drafts without a number": (
        {"spec.engineGroups": groups("a", draft={"method": "Ngram"})},
        "draft.tokens: Required value",
    ),
    "drafts by dice": (
        {"spec.engineGroups": groups("a", draft=NGRAM | {"method": "Random"})},
        "supported values",
    ),
    "drafts of embeddings": (
        {
            "spec.model.task": "Embed",
            "spec.kvPools": ABSENT,
            "spec.prefill": ABSENT,
            "spec.engineGroups": groups("a", draft=NGRAM),
        },
        "a draft is for models that generate",
    ),
    "no drafts without the plug-in": (
        {
            "spec.engine.plugin": ABSENT,
            "spec.engineGroups": groups("a", tiers=["t3"], draft=HEAD, noDraftTiers=["t3"]),
        },
        "noDraftTiers needs engine.plugin: Enabled",
    ),
    "no drafts of none": (
        {"spec.engineGroups": groups("a", tiers=["t3"], noDraftTiers=["t3"])},
        "noDraftTiers is for groups with a draft",
    ),
    "no drafts of another's": (
        {"spec.engineGroups": groups("a", tiers=["t0"], draft=HEAD, noDraftTiers=["t3"])},
        "noDraftTiers names a tier that is not in tiers of the same group",
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
