"""The examples that replay public traces send what the simulator's readers of them give."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidegate.simulator.slora.published import FOLDER, read_run
from tidegate.workload import Workload, read_scenario
from tidegate.workload.traces import READERS

EXAMPLES = Path(__file__).parents[3] / "examples" / "load"
TRACES = os.environ.get("TIDEGATE_TRACES", "")

pytestmark = pytest.mark.skipif(not TRACES, reason="TIDEGATE_TRACES is not set")


def example(name: str) -> Workload:
    source = read_scenario(EXAMPLES / name)
    source.check_sources()
    return source


@pytest.mark.parametrize("name", ["azure.yaml", "azure-vllm.yaml", "mooncake.yaml"])
def test_lengths_and_prefixes_are_the_traces(name: str) -> None:
    source = example(name)
    for tenant in source.scenario.tenants:
        trace = tenant.trace
        assert trace is not None
        sent = list(source.requests(tenant))
        assert len(sent) > 500
        for request, record in zip(
            sent, READERS[trace.format](Path(TRACES, trace.path)), strict=False
        ):
            assert request.at_seconds == record.at_seconds
            assert request.prompt_tokens == max(1, -(-record.prompt_tokens // trace.length_divisor))
            assert request.output_tokens == max(1, -(-record.output_tokens // trace.length_divisor))
            assert (request.prefix is None) == (record.prefix is None)


def test_the_27_tenants_send_what_is_simulated() -> None:
    source = example("vtc-27-tenants.yaml")
    run = read_run(Path(TRACES, FOLDER, "real_FCFS.jsonl"))
    start = run[0].arrival
    adapter = {t.name: t.trace.tenant for t in source.scenario.tenants if t.trace is not None}
    sent = [
        (r.at_seconds, adapter[r.tenant], r.prompt_tokens, r.output_tokens) for r in source.stream()
    ]
    simulated = [(r.arrival - start, r.tenant, r.prompt_tokens, r.output_tokens) for r in run]
    assert sorted(sent, key=str) == sorted(simulated, key=str)
    assert (len(sent), len(adapter)) == (1_500, 27)
