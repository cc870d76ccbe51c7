"""What clients send: the same for the same seed, and what their modules say."""

from __future__ import annotations

import heapq
import json
from itertools import islice, pairwise
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from tidegate.scheduling.contracts import (
    Arrival,
    ArrivalProcess,
    LengthDistribution,
    LengthShape,
    Scenario,
    TenantLoad,
)
from tidegate.workload import PlannedRequest, Workload
from tidegate.workload.clients import incidents
from tidegate.workload.clients.backlog import FEW, MANY, ten_thousand_against_five
from tidegate.workload.clients.client import Client, ClosedClient, bursts, constant, log_uniform
from tidegate.workload.clients.mixed_node import (
    FULL,
    HALF,
    conversations,
    mixed_node,
    mixed_node_open,
)
from tidegate.workload.clients.scenario import from_scenario
from tidegate.workload.clients.servegen import servegen, servegen_client, weibull_shape
from tidegate.workload.traces.servegen import ClientLengths, read_rates


def first(client: Client, count: int) -> list[PlannedRequest]:
    return list(islice(client.arrivals(), count))


@pytest.mark.parametrize("make", [lambda s: mixed_node(FULL, s), lambda s: mixed_node_open(2.0, s)])
def test_the_seed_decides_what_is_sent(make) -> None:  # type: ignore[no-untyped-def]
    def drawn(seed: int) -> list[list[PlannedRequest]]:
        return [first(client, 16) for client in make(seed).clients]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_a_conversation_grows_by_its_turn_and_shares_all_before_it() -> None:
    client = conversations(0.38, seed=1)
    request = next(r for r in client.arrivals() if r.prompt_tokens == 2_000)
    at = request.at_seconds
    for turn in range(2, 12):
        assert at is not None
        follow = client.follow_up(request, at + 5.0, completed=True)
        assert follow is not None
        assert follow.prompt_tokens == 400 + 1_600 * turn
        assert follow.at_seconds is not None
        assert follow.at_seconds > at + 5.0
        assert follow.prefix is not None
        assert request.prefix is not None
        shared = len(request.prefix.block_ids)
        assert follow.prefix.block_ids[:shared] == request.prefix.block_ids
        request, at = follow, follow.at_seconds
    assert request.prompt_tokens == 18_000
    assert client.follow_up(request, 1_000.0, completed=True) is None


def test_a_refused_turn_is_sent_again_and_the_session_goes_on() -> None:
    client = conversations(0.38, seed=1)
    request = first(client, 1)[0]
    again = client.follow_up(request, 10.0, completed=False)
    assert again is not None
    assert again.prompt_tokens == request.prompt_tokens
    assert again.at_seconds == 11.0


def test_sessions_come_at_the_rate_asked_for_from_the_start() -> None:
    """A loop with answers that take no time: think alone sets the pace."""
    client = conversations(0.38, seed=3)
    pending = [(r.at_seconds or 0.0, r.index, r) for r in first(client, 300)]
    horizon = pending[-1][0]
    count = 0
    while pending and pending[0][0] < horizon:
        at, _, request = heapq.heappop(pending)
        count += 1
        follow = client.follow_up(request, at + 14.0, completed=True)
        if follow is not None and follow.at_seconds is not None:
            heapq.heappush(pending, (follow.at_seconds, follow.index, follow))
    assert count / horizon == pytest.approx(0.38, rel=0.12)


def test_closed_callers_send_when_their_answer_ends() -> None:
    client = ClosedClient("c", "t", ("a", "b"), 3, constant(10), constant(5), seed=1)
    started = first(client, 10)
    assert [request.tenant for request in started] == ["a", "b", "a"]
    follow = client.follow_up(started[1], 7.0, completed=True)
    assert follow is not None
    assert (follow.tenant, follow.at_seconds, follow.index) == ("b", 7.0, 3)


def test_bursts_keep_the_mean_rate() -> None:
    from random import Random

    times = list(islice(bursts(2.0, 4.0)(Random(1)), 4_000))
    assert 4_000 / times[-1] == pytest.approx(2.0, rel=0.1)
    assert len(set(times)) / 4_000 == pytest.approx(1 / 4, rel=0.1)


def test_log_uniform_lies_in_its_range() -> None:
    from random import Random

    random, draw = Random(1), log_uniform(8_000, 32_000)
    drawn = [draw(random) for _ in range(500)]
    assert 8_000 <= min(drawn) < 9_000
    assert 30_000 < max(drawn) <= 32_000


def test_half_load_is_about_half() -> None:
    assert FULL.times(0.5) == HALF


def test_incident_b_bursts_and_says_when() -> None:
    batch = next(c for c in incidents.avalanche(1).clients if c.name == "t2")
    sent = first(batch, 2 * incidents.B_BURST_REQUESTS)
    times = [request.at_seconds or 0.0 for request in sent]
    assert all(incidents.in_avalanche(at) for at in times)
    assert times[59] - times[0] <= incidents.B_BURST_SECONDS
    assert not incidents.in_avalanche(0.0)
    assert all(request.prompt_tokens >= 16_000 for request in sent)


def test_incident_d_begins_when_told() -> None:
    clients = {client.name: client for client in incidents.poison(1, 100.0).clients}
    prompts = first(clients[incidents.POISON], 3)
    assert [request.at_seconds for request in prompts] == [100.0, 115.0, 130.0]
    assert {request.prompt_tokens for request in prompts} == {incidents.POISON_TOKENS}


def test_ten_thousand_against_five() -> None:
    many, few = ten_thousand_against_five(1).clients
    assert len(list(many.arrivals())) == 10_000
    assert len(list(few.arrivals())) == 5
    assert ten_thousand_against_five(1).tenants == {MANY: "t1", FEW: "t1"}


def test_workloads_can_be_cut() -> None:
    mixed = mixed_node(FULL, 1)
    assert [client.name for client in mixed.only("t0").clients] == ["t0"]
    assert [client.name for client in mixed.without("t2").clients] == ["t0", "t1", "t3"]


def test_a_scenario_sends_what_the_load_generator_would() -> None:
    lengths = LengthDistribution(LengthShape.UNIFORM, low=5, high=50)
    open_load = TenantLoad(
        "open",
        Arrival(ArrivalProcess.POISSON, rate_per_second=2.0),
        prompt_tokens=lengths,
        output_tokens=lengths,
    )
    closed = TenantLoad(
        "closed",
        Arrival(ArrivalProcess.CLOSED, concurrency=2),
        tier="low",
        prompt_tokens=lengths,
        output_tokens=lengths,
        requests=3,
    )
    source = Workload(Scenario(1, "s", "m", 10.0, (open_load, closed)))
    work = from_scenario(source, {"open": "high"}, ("high", "low"))
    assert work.tenants == {"open": "high", "closed": "low"}
    assert list(work.clients[0].arrivals()) == list(source.requests(open_load))
    started = first(work.clients[1], 5)
    assert len(started) == 2
    follow = work.clients[1].follow_up(started[0], 4.0, completed=True)
    assert follow is not None
    assert follow.at_seconds == 4.0
    assert work.clients[1].follow_up(started[1], 5.0, completed=True) is None
    with pytest.raises(ValueError, match="tier"):
        from_scenario(source, {}, ("high", "low"))


def test_a_servegen_client_keeps_its_rate_and_variation(tmp_path: Path) -> None:
    rows = [f"{600 * index},4.0,2.0,Gamma,1,1" for index in range(72)]
    (tmp_path / "chunk-7-trace.csv").write_text("\n".join(rows))
    client = servegen_client(
        read_rates(tmp_path, 7, 21_600),
        ClientLengths({100: 0.5, 300: 0.5}, {7: 1.0}),
        tenant="a",
        tier="t",
        rate_factor=0.5,
        seed=1,
    )
    sent = first(client, 4_000)
    times = [request.at_seconds or 0.0 for request in sent]
    gaps = [after - before for before, after in pairwise(times)]
    assert fmean(gaps) == pytest.approx(0.5, rel=0.15)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(2.0, rel=0.2)
    assert {request.prompt_tokens for request in sent} == {100, 300}
    assert {request.output_tokens for request in sent} == {7}


def test_servegens_clients_together_are_as_uneven_as_they_were(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no client"):
        servegen(tmp_path, 1)
    for number, rate in {3: 30.0, 5: 10.0, 6: 0.0, 8: 20.0}.items():
        rows = [f"{600 * index},{rate},1.0,Gamma,1,1" for index in range(1_400)]
        (tmp_path / f"chunk-{number}-trace.csv").write_text("\n".join(rows))
        if number != 8:  # its lengths are not there
            lengths = {"input_tokens": "{100: 1.0}", "output_tokens": "{7: 1.0}"}
            dataset = {str(21_600 * index): lengths for index in range(40)}
            (tmp_path / f"chunk-{number}-dataset.json").write_text(json.dumps(dataset))
    work = servegen(tmp_path, 1)
    assert work.tenants == {"client-03": "t0", "client-05": "t1"}
    assert work.tiers == ("t0", "t1")
    rates = []
    for client in work.clients:
        times = [request.at_seconds or 0.0 for request in first(client, 1_000)]
        rates.append(len(times) / times[-1])
    assert rates == pytest.approx([180.0, 60.0], rel=0.1)


def test_a_weibull_of_variation_one_is_exponential() -> None:
    assert weibull_shape(1.0) == pytest.approx(1.0, abs=1e-6)
