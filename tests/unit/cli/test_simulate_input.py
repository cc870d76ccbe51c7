"""What `tidegate simulate` refuses to read, each with one line; and what static is built of."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidegate.cli import simulate_systems as systems
from tidegate.cli.errors import CommandError
from tidegate.cli.policy_files import read_policy
from tidegate.cli.simulate_workload import Timing, prepare
from tidegate.scheduling.contracts import EngineLimits
from tidegate.simulator.engine_model import CALIBRATIONS
from tidegate.simulator.simulation import result, system

ROOT = Path(__file__).resolve().parents[3]
QUICKSTART = ROOT / "examples" / "quickstart"
TIER = """
apiVersion: tidegate.io/v1alpha1
kind: TenantTier
metadata: {name: t0}
spec: {allowedNamespaces: {}}
---
apiVersion: tidegate.io/v1alpha1
kind: ServingPool
metadata: {name: one, namespace: n}
spec: {model: {name: m, source: {uri: "s3://b/m"}}, engine: {image: i}}
---
"""
TENANT = """
apiVersion: tidegate.io/v1alpha1
kind: Tenant
metadata: {name: a, namespace: n}
spec: {tierRef: {name: t0}, weight: 3}
---
"""


def manifests(folder: Path, *documents: str) -> Path:
    file = folder / "m.yaml"
    file.write_text("".join((TIER, *documents)))
    return file


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (TENANT.replace("weight: 3", "weight: 3, weight: 4"), "m.yaml:16:40: 'weight' is given tw"),
        (
            TENANT.replace("apiVersion: tidegate.io/v1alpha1\n", ""),
            "Tenant a: apiVersion: required",
        ),
        (TENANT.replace("v1alpha1", "v9"), "Tenant a: apiVersion: "),
        (TENANT.replace("spec:", "spce: {}\nspec:"), "Tenant a: unknown field spce"),
        (
            TENANT.replace("name: a,", "name: a, lables: {},"),
            "Tenant a: unknown field metadata.lables",
        ),
        (TENANT.replace("name: a,", "name: Acme,"), "Tenant 'Acme': metadata.name: expected lower"),
        (
            TENANT.replace("name: a,", "name: a, creationTimestamp: 5,"),
            "a time such as 2026-11-30T",
        ),
        (
            TENANT.replace("name: a,", "name: a, creationTimestamp: x,"),
            "a time such as 2026-11-30T",
        ),
        ("kind: Namespace\nmetadata: {name: n, labels: [1]}\n", "Namespace n: metadata.labels: "),
        ("kind: Namespace\nmetadata: {name: n, labels: {a: 1}}\n", "Namespace n: metadata.labels"),
    ],
    ids=range(10),
)
def test_what_the_server_would_refuse_is_refused(
    document: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CommandError) as raised:
        read_policy([manifests(tmp_path, document)], None)
    assert message in str(raised.value)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("time", ["2026-01-01", "2026-01-01T00:00:00", '"2026-01-01T00:00:00Z"'])
def test_times_of_all_kinds_can_be_compared(time: str, tmp_path: Path) -> None:
    older = TENANT.replace("name: a,", f"name: a, creationTimestamp: {time},")
    newer = TENANT.replace("name: a,", "name: b, creationTimestamp: 2026-02-02T00:00:00Z,")
    given = read_policy([manifests(tmp_path, older, newer)], None)
    assert {"n/a", "n/b"} >= {row.name for row in given.policy.tenants}


def test_another_apis_tenant_is_another_kind(tmp_path: Path) -> None:
    capsule = TENANT.replace("tidegate.io/v1alpha1", "capsule.clastix.io/v1beta2")
    given = read_policy([manifests(tmp_path, capsule.replace("name: a", "name: Oil_1"))], None)
    assert given.policy.pool == "n/one"


def broken(change: Callable[[dict[str, Any]], object]) -> str:
    document = CALIBRATIONS["test"].to_json()
    change(document)
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "not JSON"),
        ("{", "not JSON"),
        (broken(lambda c: c.pop("step_time")), "calibration.step_time: required"),
        (broken(lambda c: c["step_time"].update(more=1)), "unknown field 'more'"),
        (broken(lambda c: c["step_time"].update(base_seconds=float("nan"))), "finite number"),
        (broken(lambda c: c["step_time"].update(base_seconds=-1)), "must not be negative"),
        (broken(lambda c: c.update(step_time=dict.fromkeys(c["step_time"], 0))), "one token must"),
        (broken(lambda c: c.update(kv_capacity_tokens=0)), "kv_capacity_tokens must be 16 to "),
        (broken(lambda c: c.update(kv_capacity_tokens=1e15)), "expected an integer"),
        (broken(lambda c: c.update(kv_capacity_tokens=10**15)), "kv_capacity_tokens must be 16"),
        (broken(lambda c: c.update(sources={"*": 1})), "calibration.sources['*']: expected a str"),
    ],
    ids=range(11),
)
def test_a_broken_calibration_is_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(text)
    with pytest.raises(CommandError) as raised:
        systems.hardware(str(file), None)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_of_a_known_name_has_no_known_half(tmp_path: Path) -> None:
    file = tmp_path / "h100_70b_tp8.json"
    file.write_text(json.dumps(CALIBRATIONS["h100_70b_tp8"].to_json()))
    for engine in (systems.hardware(str(file), None), systems.hardware("h100_70b_tp8", 7)):
        with pytest.raises(CommandError, match="static: half of h100_70b_tp8 is not known"):
            systems.check_policies(["static"], engine)


def test_limits_with_which_vllm_does_not_start_are_refused() -> None:
    policy = read_policy([QUICKSTART], None).policy
    with pytest.raises(CommandError, match=r"max_num_batched_tokens \(63\) must be at least"):
        systems.check_limits(replace(policy, engine=EngineLimits(64, 63)))


def test_static_of_too_many_tiers_is_refused_before_it_is_tried(tmp_path: Path) -> None:
    tiers = [{"name": f"t{number}"} for number in range(9)]
    policy = tmp_path / "policy.json"
    document = {"version": 1, "generation": 1, "pool": "n/p", "model": {"name": "m"}}
    policy.write_text(json.dumps(document | {"tiers": tiers}))
    tenant = (
        "- {name: n, tier: t, arrival: {process: Constant, rate_per_second: 1}, prompt_tokens: "
        "{distribution: Constant, value: 1}, output_tokens: {distribution: Constant, value: 1}}\n"
    )
    scenario = tmp_path / "scenario.yaml"
    for count, refused in ((1, True), (2, False), (8, False), (9, True)):
        text = "version: 1\nname: w\nmodel: m\nduration_seconds: 1\ntenants:\n"
        for number in range(count):
            text += tenant.replace("name: n", f"name: n{number}").replace("t,", f"t{number},", 1)
        scenario.write_text(text)
        load = prepare(read_policy([policy], None), str(scenario), Timing(None, None, 0.0, None))
        systems.check_split(["fcfs"], load)
        if refused:
            with pytest.raises(CommandError, match=f"in {count} tiers; 2 to 8 can be split"):
                systems.check_split(["static"], load)
        else:
            systems.check_split(["static"], load)


def test_static_engines_have_the_flags_of_the_one_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[system.System] = []

    def kept(one: system.System, *_: object, **__: object) -> result.SimulationResult:
        built.append(one)
        return result.SimulationResult(
            one.name, "w", 0, 2.0, 0.0, ("t0", "t3"), [], [], result.EngineSummary(), one.gpus
        )

    monkeypatch.setattr(systems, "simulate", kept)
    given = read_policy([QUICKSTART], None)
    policy = replace(given.policy, engine=EngineLimits(4, 512))
    timing = Timing(2.0, 0.0, 0.0, None)
    scenario = ROOT / "examples" / "load" / "short-chat.yaml"
    load = prepare(replace(given, policy=policy), str(scenario), timing)
    engine = systems.hardware("h100_70b_tp8", None)
    for name in ("fcfs", "static"):
        systems.run(name, load, engine, lambda *_: lambda _: None)
    whole, halves = built[0].groups, built[-1].groups
    assert [group.gpus for group in halves] == [4, 4]
    flags = {(g.max_num_seqs, g.max_num_batched_tokens, g.block_size) for g in (*whole, *halves)}
    assert flags == {(4, 512, 16)}
