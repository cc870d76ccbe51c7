"""Reading objects as the API server returns them."""

import copy
from typing import Any

import pytest
from tidegate_operator import api
from tidegate_operator.api import conditions, examples, fields

KINDS = {"TenantTier": api.TenantTier, "Tenant": api.Tenant, "ServingPool": api.ServingPool}


def example(kind: str) -> dict[str, Any]:
    return copy.deepcopy(examples.EXAMPLES[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_example_is_read_and_says_the_same_again(kind: str) -> None:
    read = api.parse(KINDS[kind], example(kind))
    assert isinstance(read, KINDS[kind])
    written = read.model_dump(by_alias=True, exclude_unset=True, mode="json")
    assert written == example(kind)


def test_metadata_and_status_are_read() -> None:
    obj = example("Tenant")
    obj["metadata"] |= {
        "uid": "u-1",
        "generation": 4,
        "resourceVersion": "77",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "managedFields": [{"manager": "kubectl"}],
    }
    obj["status"] = {"conditions": conditions.pending_conditions(), "shareOfTomorrow": 3}
    read = api.parse(api.Tenant, obj)
    assert isinstance(read, api.Tenant)
    assert (read.metadata.uid, read.metadata.generation) == ("u-1", 4)
    assert read.metadata.resource_version == "77"
    ready = read.status.condition("Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("Unknown", "Pending")
    assert read.status.condition("Missing") is None


@pytest.mark.parametrize(
    ("kind", "change", "path"),
    [
        ("TenantTier", {"allowedNamespaces": None}, "spec.allowedNamespaces"),
        ("TenantTier", {"queue": {"maxWait": "soon"}}, "spec.queue.maxWait"),
        ("TenantTier", {"reservedPercent": 101}, "spec.reservedPercent"),
        ("Tenant", {"weight": 0}, "spec.weight"),
        (
            "Tenant",
            {"apiKeys": [{"name": "k", "sha256": "secret-in-wrong-place"}]},
            "spec.apiKeys[0].sha256",
        ),
        ("Tenant", {"apiKeys": [{"name": "k"}]}, "spec.apiKeys[0]"),
        ("ServingPool", {"model": {"name": "m", "source": {}}}, "spec.model.source"),
        ("ServingPool", {"schedulingMode": "Random"}, "spec.schedulingMode"),
        (
            "ServingPool",
            {"engine": {"image": "i", "env": [{"name": "A", "valueFrom": {}}]}},
            "spec.engine.env[0].valueFrom",
        ),
    ],
)
def test_faults_are_told_by_path_and_without_the_value(
    kind: str, change: dict[str, Any], path: str
) -> None:
    obj = example(kind)
    obj["spec"] |= change
    errors = api.parse(KINDS[kind], obj)
    assert isinstance(errors, list)
    assert [error.path for error in errors] == [path]
    assert "secret-in-wrong-place" not in str(errors)
    assert str(errors[0]).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("500ms", 0.5), ("60s", 60), ("1h30m", 5400), ("1m0s", 60), ("0s", 0), ("1s1ms", 1.001)],
)
def test_duration(written: str, seconds: float) -> None:
    assert fields.duration_seconds(written) == pytest.approx(seconds)


@pytest.mark.parametrize("written", ["", "5", "1.5s", "-1s", "1d", "1s ", "s"])
def test_no_duration(written: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        fields.duration_seconds(written)


SELECTORS = [
    ({}, {}, True),
    ({"matchLabels": {"a": "1"}}, {"a": "1", "b": "2"}, True),
    ({"matchLabels": {"a": "1"}}, {"a": "2"}, False),
    ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}]}, {"a": "1"}, True),
    ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}]}, {}, False),
    ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, {}, True),
    ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, {"a": "1"}, False),
    ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {"a": ""}, True),
    ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, {"a": ""}, False),
    (
        {"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]},
        {"a": "1"},
        False,
    ),
]


@pytest.mark.parametrize(("selector", "labels", "selected"), SELECTORS)
def test_label_selector(selector: dict[str, Any], labels: dict[str, str], selected: bool) -> None:
    assert api.LabelSelector.model_validate(selector).matches(labels) is selected


def test_engine_defaults_are_resolved_when_read() -> None:
    obj = example("ServingPool")
    obj["spec"]["engine"] = {"image": "vllm/vllm-openai:v0.32.0"}
    pool = api.parse(api.ServingPool, obj)
    assert isinstance(pool, api.ServingPool)
    engine = pool.spec.engine
    assert engine.tensor_parallel_size == 1
    assert (engine.startup_timeout_seconds, engine.drain_timeout_seconds) == (1800, 120)
