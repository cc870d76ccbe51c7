"""`tidegate simulate`: what it reads, what it writes, and that wrong input is one line."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tidegate.cli.main import main
from tidegate.scheduling.contracts import Policy, SimulationReport, loads
from tidegate.workload import read_scenario
from tidegate.workload.clients.built_in import SERVEGEN_FOLDER

ROOT = Path(__file__).resolve().parents[3]
QUICKSTART = ROOT / "examples" / "quickstart"
SCENARIO = """
version: 1
name: tiny
model: m
duration_seconds: 20
seed: 3
tenants:
- name: paid
  tier: T0
  arrival: {process: Constant, rate_per_second: 2}
  prompt_tokens: {distribution: Constant, value: 100}
  output_tokens: {distribution: Constant, value: 20}
- name: newcomer
  tier: T3
  arrival: {process: Closed, concurrency: 3}
  prompt_tokens: {distribution: Constant, value: 200}
  output_tokens: {distribution: Constant, value: 50}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    return path


def simulate(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int | str | None:
    """The exit code of the command; 0 where it returns."""
    monkeypatch.setattr(sys, "argv", ["tidegate", "simulate", *map(str, arguments)])
    with pytest.raises(SystemExit) as raised:
        main()
    return raised.value.code or 0


def test_manifests_and_a_scenario_become_a_report(
    scenario: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    written = tmp_path / "r.json"
    arguments = (
        QUICKSTART, "--workload", scenario, "--compare", "fcfs,priority", "--compare", "vtc",
        "--slo", "t0=ttft:1s:90", "--gpu-hour", "2", "--drain", "5", "--json", written,
    )  # fmt: skip
    assert simulate(monkeypatch, *arguments) == 0
    out = capsys.readouterr().out
    assert out.startswith("MODEL ONLY")
    assert "Not among the Tenants, so of weight 1 in their tiers: newcomer" in out
    assert "t0: TTFT within 1.00 s for 90%: 100.00%, met" in out
    report = loads(SimulationReport, written.read_text())
    assert [run.policy for run in report.runs] == ["tidegate", "fcfs", "priority", "vtc"]
    assert (report.seed, report.measured_until_seconds, report.duration_seconds) == (3, 20, 25)
    ours = report.runs[0]
    assert {(row.tier, row.name): row.figures.sent for row in ours.tenants}[("t0", "paid")] == 40
    assert [tier.name for tier in ours.tiers] == ["t0", "t3"]
    t0, t3 = ours.tiers
    assert t0.economics.reserved_percent == 60.0
    assert report.runs[1].tiers[0].economics.reserved_percent == 0.0
    paid = t0.economics.gpu_hours_paid + t3.economics.gpu_hours_paid + ours.unallocated_gpu_hours
    assert paid == pytest.approx(8 * 20 / 3600)


def test_the_same_seed_gives_the_same_report(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / name for name in ("a.json", "b.json")]
    for file in files:
        simulate(monkeypatch, QUICKSTART, "--workload", scenario, "--drain", 5, "--json", file)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_policy_file_and_a_built_in_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = ROOT / "examples" / "simulate" / "reserved-node.json"
    written, shown = tmp_path / "r.json", tmp_path / "r.html"
    arguments = (
        policy, "--workload", "long-prompts", "--duration", 40, "--warmup", 5, "--drain", 5,
        "--seed", 9, "--policy", "sidecar", "--json", written, "--html", shown,
    )  # fmt: skip
    assert simulate(monkeypatch, *arguments) == 0
    report = loads(SimulationReport, written.read_text())
    assert (report.seed, report.warmup_seconds) == (9, 5)
    objective = report.runs[0].tiers[0].figures.objectives[0]
    assert (objective.target_seconds, objective.ratio_percent) == (0.8, 99.5)
    assert "tenants of the workload's own" in capsys.readouterr().out
    assert shown.read_text().startswith("<!doctype html>")
    assert "conversation" in shown.read_text()


def test_a_scenario_of_a_built_in_workload_is_that_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = ROOT / "examples" / "simulate" / "reserved-node.json"
    times = ("--duration", 20, "--warmup", 5, "--drain", 5, "--seed", 9, "--policy", "sidecar")
    runs = []
    for workload in ("long-prompts", ROOT / "examples" / "load" / "long-prompts.yaml"):
        written = tmp_path / "r.json"
        arguments = (policy, "--workload", workload, *times, "--json", written)
        assert simulate(monkeypatch, *arguments) == 0
        runs.append(loads(SimulationReport, written.read_text()).runs[0])
    named, listed = runs
    assert listed.tiers == named.tiers
    assert {row.name: row for row in listed.tenants} == {row.name: row for row in named.tenants}
    assert sum(row.figures.sent for row in listed.tenants) > 20


def test_a_built_in_burst_at_the_start_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = tmp_path / "r.json"
    arguments = ("--workload", "ten-thousand-against-five", "--duration", 10, "--drain", 0)
    arguments += ("--policy", "sidecar", "--json", written)
    assert simulate(monkeypatch, QUICKSTART, *arguments) == 0
    run = loads(SimulationReport, written.read_text()).runs[0]
    sent = {row.name: row.figures for row in run.tenants}
    assert sent["backlog/many"].sent == 10_000
    assert sent["backlog/many"].refused["queue_full"] > 4_000
    assert sent["backlog/few"].sent == 5


def test_static_is_the_best_split_of_the_tiers(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = tmp_path / "r.json"
    arguments = (QUICKSTART, "--workload", scenario, "--policy", "static", "--json", written)
    assert simulate(monkeypatch, *arguments, "--drain", 5) == 0
    run = loads(SimulationReport, written.read_text()).runs[0]
    assert run.policy == "static t0 | t3"
    assert run.engine.gpus == 8


def test_a_tenant_is_found_by_its_key(
    scenario: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = SCENARIO.replace("- name: newcomer", "- name: newcomer\n  key: demo-batch")
    scenario.write_text(text)
    arguments = (QUICKSTART, "--workload", scenario, "--policy", "fcfs", "--drain", 5)
    assert simulate(monkeypatch, *arguments) == 0
    out = capsys.readouterr().out
    assert "Not among the Tenants" not in out
    assert "demo-batch" not in out
    # Of the Tenant's tier, not of the scenario's.
    assert any(line.split()[:2] == ["t2", "newcomer"] for line in out.splitlines())


def test_a_measured_calibration_is_read_from_its_file(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidegate.simulator.engine_model import CALIBRATIONS

    file, written = tmp_path / "mine_tp2.json", tmp_path / "r.json"
    file.write_text(json.dumps(CALIBRATIONS["test"].to_json()))
    arguments = (QUICKSTART, "--workload", scenario, "--policy", "fcfs", "--calibration", file)
    assert simulate(monkeypatch, *arguments, "--drain", 5, "--json", written) == 0
    report = loads(SimulationReport, written.read_text())
    assert (report.calibration, report.runs[0].engine.gpus) == ("mine_tp2", 2)


def test_the_example_reserves_seventy_percent_for_fifteen_of_the_traffic() -> None:
    folder = ROOT / "examples" / "simulate"
    policy = loads(Policy, (folder / "reserved-node.json").read_text())
    workload = read_scenario(folder / "node-traffic.yaml")
    sent = {
        load.name: sum(1 for _ in workload.requests(load)) for load in workload.scenario.tenants
    }
    of_t0 = sum(sent[load.name] for load in workload.scenario.tenants if load.tier == "t0")
    assert 100 * of_t0 / sum(sent.values()) == pytest.approx(15.0, abs=0.1)
    assert {tier.name: tier.reserved_percent for tier in policy.tiers}["t0"] == 70
    assert {load.tier for load in workload.scenario.tenants} == {t.name for t in policy.tiers}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "magic"], "'magic' is no policy; there are tidegate, sidecar, fcfs"),
        (["--compare", "fcfs,magic"], "'magic' is no policy"),
        (
            ["--calibration", "a100"],
            "--calibration: a100 is no file, and the built-in ones are h10",
        ),
        (["--calibration", "no.json"], "--calibration: no.json: No such file"),
        (["--policy", "static", "--calibration", "test"], "static: half of test is not known"),
        (["--slo", "t0"], "--slo t0: expected TIER=ttft:800ms:99.5"),
        (["--slo", "t0=ttft:0s"], "--slo t0=ttft:0s: expected"),
        (["--slo", "t0=ttft:1.2.3s"], "expected TIER="),
        (["--slo", "t9=ttft:1s"], "--slo: there is no tier 't9'; there are t0, t1, t2, t3"),
        (["--warmup", "20"], "--warmup: 20 s leave nothing of the 20 s of --duration"),
        (["--pool", "nope"], "--pool: no ServingPool is called 'nope'; there are quickstart/chat"),
        (["--fidelity", "no.json"], "--fidelity: no.json: No such file"),
        (["--fidelity", str(QUICKSTART / "tiers.yaml")], "tiers.yaml: not JSON"),
        (["--json", "/nowhere/x"], "--json: cannot write /nowhere/x"),
        (["--html", "/"], "--html: cannot write /"),
        (["--json", "r", "--html", "./r"], "--json and --html are both r"),
        (["--pool", "embeddings"], "quickstart/embeddings embeds; only pools that generate"),
        (["--workload", "nope"], "--workload: nope is no file, and the built-in ones are mixed"),
        (["--workload", "nope.yaml"], "nope.yaml: No such file or directory"),
    ],
)
def test_wrong_options_are_one_line_and_status_2(
    arguments: list[str],
    message: str,
    scenario: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert simulate(monkeypatch, QUICKSTART, "--workload", scenario, *arguments) == 2
    assert_one_line(capsys, message)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--duration", "inf"), ("--duration", "nan"), ("--duration", "0"), ("--drain", "inf"),
        ("--warmup", "-1"), ("--gpu-hour", "inf"), ("--gpus", "99999999"), ("--seed", str(2**53)),
    ],
)  # fmt: skip
def test_numbers_out_of_bounds_are_refused(
    option: str,
    value: str,
    scenario: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert simulate(monkeypatch, QUICKSTART, "--workload", scenario, option, value) == 2
    assert f"Invalid value for '{option}'" in capsys.readouterr().err


def test_what_is_written_outlives_a_closed_pipe(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidegate.cli import simulate as command

    def closed(*_: object) -> None:
        raise SystemExit(1)  # what rich makes of it

    monkeypatch.setattr(command, "print_report", closed)
    files = tmp_path / "r.json", tmp_path / "r.html"
    arguments = (QUICKSTART, "--workload", scenario, "--policy", "fcfs", "--drain", 0)
    assert simulate(monkeypatch, *arguments, "--json", files[0], "--html", files[1]) == 1
    assert all(file.stat().st_size for file in files)


def assert_one_line(capsys: pytest.CaptureFixture[str], message: str) -> None:
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.startswith("tidegate: ")
    assert err.count("\n") == 1


TIER = "{apiVersion: tidegate.io/v1alpha1, kind: TenantTier, metadata: {name: t0}, spec: SPEC}"
POOL = """
apiVersion: tidegate.io/v1alpha1
kind: ServingPool
metadata: {name: one, namespace: n}
spec: {model: {name: m, source: {uri: "s3://b/m"}}, engine: {image: i}}
"""
ANY = TIER.replace("SPEC", "{allowedNamespaces: {}}")
PLAIN = [ANY, POOL]


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([], "no TenantTier, Tenant or ServingPool in these files"),
        (["kind: ConfigMap"], "no TenantTier, Tenant or ServingPool in these files"),
        (["- 1"], "expected an object, got list"),
        (["a: [\n"], "m.yaml:2:1: "),
        (["{}"], "policy.version: required (nor is it a manifest: it has no kind)"),
        (["{version: 1, tiers: [{name: a, shares: 1}]}"], "m.yaml: policy.generation: required"),
        ([TIER.replace("metadata: {name: t0}, ", "")], "a TenantTier without metadata.name"),
        ([TIER.replace("SPEC", "{priorty: 1}")], "TenantTier t0: unknown field spec.priorty"),
        ([ANY.replace("}}}", "}, output: {most: 1}}}")], "unknown field spec.output.most"),
        ([TIER.replace("SPEC", "{priority: high}")], "TenantTier t0: spec.priority: "),
        ([*PLAIN, ANY], "TenantTier t0 stands in"),
        ([ANY], "no ServingPool that generates text"),
        ([*PLAIN, POOL.replace("one", "two")], "--pool: needed, for there are n/one, n/two"),
        ([POOL], "ServingPool n/one: The pool has no tier to serve"),
        ([*PLAIN, "{version: 1}"], "is a policy and"),
    ],
    ids=range(15),
)
def test_wrong_files_are_one_line_and_status_2(
    documents: list[str],
    message: str,
    scenario: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "m.yaml"
    file.write_text("\n---\n".join(documents))
    assert simulate(monkeypatch, file, "--workload", scenario) == 2
    assert_one_line(capsys, message)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tier: T3", "tier: T9", "tenant 'newcomer' of the workload is no Tenant of the policy"),
        (
            "name: newcomer",
            "name: quickstart/paid",
            "'paid' and 'quickstart/paid' of the workload ",
        ),
        ("version: 1", "version: 9", "scenario.version: must be at most 1"),
        ("process: Constant, rate_per_second: 2", "process: Trace", "trace: required for Trace"),
    ],
)
def test_a_workload_that_does_not_fit_is_one_line_and_status_2(
    old: str,
    new: str,
    message: str,
    scenario: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scenario.write_text(SCENARIO.replace(old, new))
    assert simulate(monkeypatch, QUICKSTART, "--workload", scenario) == 2
    assert_one_line(capsys, message)


def test_a_built_in_workload_needs_its_tiers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "m.yaml"
    file.write_text("\n---\n".join(PLAIN))
    assert simulate(monkeypatch, file, "--workload", "mixed-node") == 2
    assert_one_line(capsys, "its tenants are of the tiers t0, t1, t2, t3; the policy has t0")


def test_a_workload_of_traces_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TIDEGATE_TRACES", raising=False)
    assert simulate(monkeypatch, QUICKSTART, "--workload", "servegen") == 2
    assert_one_line(capsys, "--workload servegen: TIDEGATE_TRACES names no folder of traces")
    monkeypatch.setenv("TIDEGATE_TRACES", str(tmp_path))
    assert simulate(monkeypatch, QUICKSTART, "--workload", "servegen") == 2
    assert_one_line(capsys, "holds no client of ServeGen's that sends anything")
    folder = tmp_path / SERVEGEN_FOLDER
    folder.mkdir(parents=True)
    (folder / "chunk-0-trace.csv").write_text("0,1.5,1,Gamma,1,1\n")
    assert simulate(monkeypatch, QUICKSTART, "--workload", "servegen") == 2
    assert_one_line(capsys, "chunk-0-trace.csv:1: ends after 600 s; there is nothing from 741600 s")


def test_what_the_operator_would_report_is_noted(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    tenant = (
        "{apiVersion: tidegate.io/v1alpha1, kind: Tenant, metadata: {name: lost, namespace: n}, "
        "spec: {tierRef: {name: gone}}}"
    )
    pool = POOL.replace("engine: {image: i}", "engine: {image: i}, replicas: 3")
    free = ANY.replace("name: t0", "name: t3")
    file = tmp_path / "m.yaml"
    file.write_text("\n---\n".join([tenant, pool, free, ANY]))
    arguments = (file, "--workload", scenario, "--policy", "fcfs", "--drain", 5)
    assert simulate(monkeypatch, *arguments) == 0
    out = capsys.readouterr().out
    assert "Tenant n/lost is not served: spec.tierRef: there is no TenantTier gone" in out
    assert "One of 3 replicas is simulated" in out
    assert "The pool's engine has 1 GPUs, h100_70b_tp8 has 8" in out


def test_requests_that_would_be_refused_before_any_scheduler_are_noted(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pool = POOL.replace("{name: m,", "{name: m, maxModelLen: 219,")
    free = ANY.replace("name: t0", "name: t3").replace("}}}", "}, output: {default: 9, max: 19}}}")
    file = tmp_path / "m.yaml"
    file.write_text("\n---\n".join([ANY, free, pool]))
    arguments = (file, "--workload", scenario, "--policy", "fcfs", "--drain", 5)
    assert simulate(monkeypatch, *arguments) == 0
    out = capsys.readouterr().out
    # Those of 200 + 50 tokens in t3; the 100 + 20 of t0 fit, and have no such limit.
    sent = re.search(r"(\d+) requests are longer than the model's context of 219 tokens", out)
    answers = re.search(r"(\d+) answers are longer than their tier's output.max", out)
    assert sent is not None
    assert answers is not None
    assert 60 < int(answers[1]) <= int(sent[1]) < 120


def test_a_pool_that_is_switched_off_is_simulated_as_it_serves(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    mode = "engine: {image: i}, schedulingMode: FirstComeFirstServed"
    file, written = tmp_path / "m.yaml", tmp_path / "r.json"
    free = ANY.replace("name: t0", "name: t3")
    file.write_text("\n---\n".join([ANY, free, POOL.replace("engine: {image: i}", mode)]))
    arguments = (file, "--workload", scenario, "--compare", "sidecar", "--drain", 5)
    assert simulate(monkeypatch, *arguments, "--json", written) == 0
    runs = loads(SimulationReport, written.read_text()).runs
    assert [run.policy for run in runs] == ["fcfs", "sidecar"]
    assert "The pool's mode is FirstComeFirstServed, simulated as fcfs" in capsys.readouterr().out


def test_interrupted_says_so(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tidegate.cli import simulate_systems

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(simulate_systems, "run", interrupted)
    assert simulate(monkeypatch, QUICKSTART, "--workload", scenario) == 130
    assert_one_line(capsys, "interrupted")
