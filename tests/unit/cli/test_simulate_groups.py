"""`tidegate simulate` of engine groups: an engine for each, and what is left out is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tidegate.cli import simulate_systems as systems
from tidegate.cli.errors import CommandError
from tidegate.cli.policy_files import GroupInput, PolicyInput, read_policy
from tidegate.cli.simulate_notes import how_simulated
from tidegate.cli.simulate_workload import Timing, prepare
from tidegate.scheduling.contracts import EngineGroupPolicy, EngineLimits
from tidegate.simulator.report import Setting, build_report
from tidegate.simulator.report.build import Run

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "8xh100"
ENGINE = systems.hardware("h100_70b_fp8_tp2", None)
PAID = """
version: 1
name: groups
model: llama-3.3-70b
duration_seconds: 5
tenants:
- name: talk
  tier: paid
  arrival: {process: Constant, rate_per_second: 2}
  prompt_tokens: {distribution: Constant, value: 500}
  output_tokens: {distribution: Constant, value: 20}
"""
CODE = """
- name: complete
  tier: batch
  arrival: {process: Closed, concurrency: 60}
  prompt_tokens: {distribution: Constant, value: 8000}
  output_tokens: {distribution: Constant, value: 100}
"""


@pytest.fixture(scope="module")
def given() -> PolicyInput:
    return read_policy([EXAMPLE], None)


def run(given: PolicyInput, text: str, folder: Path, name: str = "tidegate") -> Run:
    scenario = folder / "scenario.yaml"
    scenario.write_text(text)
    load = prepare(given, str(scenario), Timing(None, 0.0, 2.0, 1))
    return systems.run(name, load, ENGINE, lambda *_: lambda _: None)


def first_tokens(one: Run) -> list[float]:
    return [
        record.first_token - record.arrival
        for record in one.result.records
        if record.tier == "paid" and record.first_token is not None
    ]


@pytest.mark.parametrize("name", ["tidegate", "fcfs"])
def test_a_group_has_an_engine_of_its_own(given: PolicyInput, name: str, tmp_path: Path) -> None:
    alone, beside = run(given, PAID, tmp_path, name), run(given, PAID + CODE, tmp_path, name)
    assert first_tokens(beside) == first_tokens(alone) != []
    assert {(one.tier, one.group) for one in beside.result.records} == {
        ("paid", "chat"),
        ("batch", "code"),
    }
    assert (beside.result.gpus, beside.engines) == (6, 3)
    # The same on one engine: the prompts of batch are in the way.
    whole = replace(given, policy=replace(given.policy, engine_groups=(), fallback=None))
    assert max(first_tokens(run(whole, PAID + CODE, tmp_path, name))) > max(first_tokens(alone))


def test_a_reservation_is_of_the_home(given: PolicyInput, tmp_path: Path) -> None:
    report = build_report([run(given, PAID + CODE, tmp_path)], Setting(ENGINE.name, 5.0))
    reserved = {tier.name: tier.economics.reserved_percent for tier in report.runs[0].tiers}
    assert reserved == pytest.approx({"paid": 60 / 3, "batch": 10 / 3})


def test_what_is_left_out_is_said(given: PolicyInput) -> None:
    said = "\n".join(how_simulated(given, ENGINE, with_plugin=False))
    assert "one engine with 2 GPUs" in said
    assert "chat (paid, agents), code (batch), plain (free)" in said
    assert "spilling is not simulated" in said
    assert "Drafts are not simulated" in said
    assert "chat (Eagle3, 3 tokens), code (Ngram, 4 tokens)" in said
    assert "The fallback (paid) is not simulated" in said
    assert "replicas" not in said
    two = replace(given, groups={"chat": GroupInput(2)})
    said = "\n".join(how_simulated(two, ENGINE, with_plugin=False))
    assert "One of 2 replicas of chat is simulated, and gets all of its workload" in said
    assert "Drafts" not in said


def test_a_tier_that_is_at_home_in_all_goes_to_the_first(given: PolicyInput) -> None:
    groups = (EngineGroupPolicy("a", ("batch",)), EngineGroupPolicy("b", ("free",)))
    policy = replace(given.policy, engine_groups=groups)
    assert systems.homes(policy) == {"a": {"batch", "paid", "agents"}, "b": {"free"}}


def test_static_cannot_split_what_is_split(given: PolicyInput, tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(PAID + CODE)
    load = prepare(given, str(scenario), Timing(None, 0.0, 2.0, 1))
    with pytest.raises(CommandError, match="split already, into chat, code, plain"):
        systems.check_split(["static"], load)


def test_static_splits_a_pool_of_one_group_with_a_fallback(
    given: PolicyInput, tmp_path: Path
) -> None:
    group = EngineGroupPolicy("all", ("paid", "agents", "batch", "free"))
    one = replace(given, policy=replace(given.policy, engine_groups=(group,)))
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(PAID + CODE)
    load = prepare(one, str(scenario), Timing(2.0, 0.0, 1.0, 1))
    engine = systems.hardware("h100_70b_tp8", None)
    split = systems.run("static", load, engine, lambda *_: lambda _: None)
    assert split.result.policy == "static paid | batch"


def test_limits_of_a_group_are_looked_at_too(given: PolicyInput) -> None:
    group = EngineGroupPolicy("a", ("paid",), engine=EngineLimits(64, 63))
    with pytest.raises(CommandError, match=r"max_num_batched_tokens \(63\)"):
        systems.check_limits(replace(given.policy, engine_groups=(group,)))
