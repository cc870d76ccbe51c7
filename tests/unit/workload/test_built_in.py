"""Built-in workloads as scenarios: the examples send what the simulator's of that name send."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from tidegate.scheduling.contracts import (
    SCENARIO_VERSION,
    Arrival,
    ArrivalProcess,
    BuiltInWorkload,
    LengthDistribution,
    LengthShape,
    Scenario,
    TenantLoad,
)
from tidegate.workload import (
    PlannedRequest,
    ScenarioError,
    TraceError,
    Workload,
    prompt_text,
    read_scenario,
)
from tidegate.workload.clients import Client
from tidegate.workload.clients.built_in import BUILT_IN, SERVEGEN_FOLDER
from tidegate.workload.clients.scenario import from_scenario

EXAMPLES = Path(__file__).parents[3] / "examples" / "load"
EXAMPLE_OF = {
    BuiltInWorkload.MIXED_NODE: "mixed-node.yaml",
    BuiltInWorkload.LONG_PROMPTS: "long-prompts.yaml",
    BuiltInWorkload.AVALANCHE: "avalanche.yaml",
    BuiltInWorkload.POISON: "poison-prompts.yaml",
    BuiltInWorkload.SERVEGEN: "servegen.yaml",
    BuiltInWorkload.TEN_THOUSAND_AGAINST_FIVE: "ten-thousand-against-five.yaml",
}
WITHOUT_TRACES = [workload for workload in EXAMPLE_OF if workload is not BuiltInWorkload.SERVEGEN]
TRACES = os.environ.get("TIDEGATE_TRACES", "")
TIERS = ("t0", "t1", "t2", "t3")


def scenario(*names: str, workload: BuiltInWorkload, tier: str = "t0", seed: int = 1) -> Workload:
    arrival = Arrival(ArrivalProcess.BUILT_IN, workload=workload)
    rows = tuple(TenantLoad(name, arrival, tier=tier) for name in names)
    return Workload(Scenario(SCENARIO_VERSION, "s", "m", 600.0, rows, seed=seed))


def played(client: Client, seconds: float) -> list[PlannedRequest]:
    """What it sends of its own accord (200 at most) and after answers of 3 seconds."""
    sent: list[PlannedRequest] = []
    for request in islice(client.arrivals(), 200):
        following: PlannedRequest | None = request
        while following is not None and (following.at_seconds or 0.0) < seconds:
            sent.append(following)
            following = client.follow_up(following, (following.at_seconds or 0.0) + 3.0, True)
    return sent


def compare_with_the_simulators(workload: BuiltInWorkload) -> None:
    source = read_scenario(EXAMPLES / EXAMPLE_OF[workload])
    given = BUILT_IN[workload](source.scenario.seed)
    assert {row.name: row.tier.lower() for row in source.scenario.tenants} == given.tenants
    for client, ours in zip(given.clients, source.clients(), strict=True):
        assert (ours.name, ours.tier, ours.kind) == (client.name, client.tier, client.kind)
        assert ours.tenants == tuple(client.tenants)
        expected = played(client, source.scenario.duration_seconds)
        assert expected
        assert played(ours, source.scenario.duration_seconds) == expected


@pytest.mark.parametrize("workload", WITHOUT_TRACES)
def test_an_example_sends_what_the_simulators_workload_does(workload: BuiltInWorkload) -> None:
    compare_with_the_simulators(workload)


@pytest.mark.skipif(
    not Path(TRACES, SERVEGEN_FOLDER).is_dir() or not TRACES,
    reason="TIDEGATE_TRACES holds no servegen",
)
def test_the_example_of_servegen_sends_what_the_simulators_workload_does() -> None:
    compare_with_the_simulators(BuiltInWorkload.SERVEGEN)


def test_servegens_clients_are_a_scenarios_tenants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / SERVEGEN_FOLDER
    folder.mkdir(parents=True)
    monkeypatch.setenv("TIDEGATE_TRACES", str(tmp_path))
    for number, rate in {3: 30.0, 5: 10.0}.items():
        rows = [f"{600 * index},{rate},1.0,Gamma,1,1" for index in range(1_240)]
        (folder / f"chunk-{number}-trace.csv").write_text("\n".join(rows))
        lengths = {"input_tokens": "{100: 1.0}", "output_tokens": "{7: 1.0}"}
        dataset = {str(21_600 * index): lengths for index in range(40)}
        (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(dataset))
    source = scenario("client-05", "client-03", workload=BuiltInWorkload.SERVEGEN)
    source.check_sources()
    simulated = BUILT_IN[BuiltInWorkload.SERVEGEN](1)
    assert [client.name for client in source.clients()] == ["client-03", "client-05"]
    for ours, client in zip(source.clients(), simulated.clients, strict=True):
        assert list(islice(ours.arrivals(), 50)) == list(islice(client.arrivals(), 50))
    (folder / "chunk-5-trace.csv").write_text("0,1.0,1.0,Gamma,1,1")
    with pytest.raises(TraceError, match=r"chunk-5-trace\.csv:1: ends after 600 s"):
        source.check_sources()
    monkeypatch.delenv("TIDEGATE_TRACES")
    with pytest.raises(TraceError, match="TIDEGATE_TRACES names no folder of traces"):
        source.check_sources()


def test_tenants_that_are_not_listed_begin_no_session_and_the_others_their_own() -> None:
    whole = scenario(*(f"node/t0-{i:02d}" for i in range(10)), workload=BuiltInWorkload.MIXED_NODE)
    part = scenario("node/t0-03", "node/t0-07", workload=BuiltInWorkload.MIXED_NODE)
    (client,) = part.clients()
    assert client.tenants == ("node/t0-03", "node/t0-07")
    listed = [r for r in whole.clients()[0].arrivals() if r.tenant in client.tenants]
    assert list(client.arrivals()) == listed
    assert {request.tenant for request in listed} == set(client.tenants)


def test_nothing_is_sent_after_the_duration() -> None:
    (client,) = scenario("node/t0-00", workload=BuiltInWorkload.MIXED_NODE).clients()
    requests = list(client.arrivals())
    assert max(request.at_seconds or 0.0 for request in requests) < 600.0
    assert client.follow_up(requests[-1], 601.0, completed=False) is None


def test_the_workload_has_tenants_of_its_own() -> None:
    with pytest.raises(ScenarioError, match=r"'a': the workload poison has none .* node/poison"):
        scenario("a", workload=BuiltInWorkload.POISON).check_sources()


def test_its_requests_are_asked_of_its_clients() -> None:
    source = scenario("node/poison", workload=BuiltInWorkload.POISON)
    with pytest.raises(ValueError, match="client of a built-in workload"):
        next(source.requests(source.scenario.tenants[0]))
    with pytest.raises(ValueError, match="it has no times"):
        source.stream()


def test_tenants_that_one_client_sends_for_are_in_one_tier() -> None:
    source = scenario("node/t0-00", "node/t0-01", workload=BuiltInWorkload.MIXED_NODE)
    made = from_scenario(source, dict.fromkeys(("node/t0-00", "node/t0-01"), "paid"), ("paid",))
    assert [client.tier for client in made.clients] == ["paid"]
    with pytest.raises(ValueError, match="send as one and must be in one tier; they are in t0, t1"):
        from_scenario(source, {"node/t0-01": "t1"}, TIERS)


def test_a_tenant_beside_them_has_another_name_than_a_client() -> None:
    source = scenario("node/t0-00", workload=BuiltInWorkload.MIXED_NODE)
    one = LengthDistribution(LengthShape.CONSTANT, value=1)
    beside = TenantLoad(
        "t0", Arrival(ArrivalProcess.BURST), "t0", requests=1, prompt_tokens=one, output_tokens=one
    )
    rows = (*source.scenario.tenants, beside)
    both = Workload(Scenario(SCENARIO_VERSION, "s", "m", 600.0, rows))
    with pytest.raises(ValueError, match="a client of the built-in workload has this name"):
        from_scenario(both, {}, TIERS)


def test_equal_blocks_of_two_clients_are_different_text() -> None:
    def beginning(name: str) -> str:
        """Of a prompt that begins with block 0 of the client."""
        source = scenario(name, workload=BuiltInWorkload.MIXED_NODE)
        sent = next(source.clients()[0].arrivals())
        assert sent.prefix is not None
        prefix = replace(sent.prefix, block_ids=(0,))
        return prompt_text(PlannedRequest(name, 0, 0.0, 100, 1, prefix), seed=1)

    assert beginning("node/t0-00") == beginning("node/t0-01")
    assert beginning("node/t0-00") != beginning("node/t1-00")
