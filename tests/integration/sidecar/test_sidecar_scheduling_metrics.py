"""What the scheduling core did, in /metrics and /status: there at zero, then counted once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.fake_engine import socket_folder, until
from support.faulty_engine import MODEL, FaultyEngine, answer_well
from support.faulty_upstream import Connection
from support.sidecar import ALICE, BOB, SidecarUnderTest, policy_document
from tidegate_sidecar.exposition import DISPATCHED
from tidegate_sidecar.tally import WAITS_ENDED

from tidegate.scheduling.contracts import (
    OnExceed,
    PreemptionCause,
    SidecarStatus,
    SloMetric,
    decode,
)
from tidegate.scheduling.outcomes import Outcome

from .conftest import StartSidecar

pytestmark = pytest.mark.integration

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def policy(**members: Any) -> dict[str, Any]:
    return policy_document(
        tier={
            "prompt_limit": {"max_tokens": 100, "on_exceed": "Truncate"},
            "rate_limits": [{"name": "rpm", "per": "Minute", "requests": 3}],
            "slo_objectives": [
                {"metric": "TimeToFirstToken", "target_seconds": 30},
                {"metric": "EndToEnd", "target_seconds": 0.001},
            ],
        },
        kv_pools=[{"name": "all", "tiers": ["standard"], "percent": 80}],
        **members,
    )


async def metrics(sidecar: SidecarUnderTest) -> Samples:
    async with sidecar.client.get(sidecar.admin_url + "/metrics") as response:
        families = text_string_to_metric_families(await response.text())
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
        }


def labelled(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return name, tuple(sorted(labels.items()))


TIER = {"tier": "standard"}
ONE = {"tenant": ALICE, **TIER}
DESIGN = {
    labelled("tidegate_queue_size", **TIER): 0,
    labelled("tidegate_queue_bytes", **TIER): 0,
    **{
        labelled("tidegate_queue_duration_seconds_count", outcome=outcome, **TIER): 0
        for outcome in (DISPATCHED, *WAITS_ENDED, "other")
    },
    **{labelled("tidegate_requests_total", outcome=outcome, **ONE): 0 for outcome in Outcome},
    labelled("tidegate_request_ttft_seconds_count", **TIER): 0,
    labelled("tidegate_request_itl_seconds_count", **TIER): 0,
    labelled("tidegate_request_duration_seconds_count", **TIER): 0,
    **{
        labelled(f"tidegate_slo_{kind}_total", objective=metric, **TIER): 0
        for kind in ("requests", "good")
        for metric in (SloMetric.TIME_TO_FIRST_TOKEN, SloMetric.END_TO_END)
    },
    **{labelled("tidegate_engine_time_ms_total", tenant=name, **TIER): 0 for name in (ALICE, BOB)},
    labelled("tidegate_max_service_gap", **TIER): 0,
    **{
        labelled("tidegate_kv_blocks", kv_pool="all", state=state): 0
        for state in ("nominal", "held", "borrowed")
    },
    **{labelled("tidegate_preemptions_total", cause=cause): 0 for cause in PreemptionCause},
    labelled("tidegate_recomputed_tokens_total"): 0,
    labelled("tidegate_vft_skew_ratio_bucket", le="+Inf", **TIER): 0,
    labelled("tidegate_prefill_tokens_per_step_count"): 0,
    labelled("tidegate_draft_acceptance_ratio", **TIER): 0,
    labelled("tidegate_rate_limited_total", limit="rpm"): 0,
    labelled("tidegate_throttled_total", **TIER): 0,
    **{labelled("tidegate_prompt_limited_total", action=action, **TIER): 0 for action in OnExceed},
    labelled("tidegate_gate_window"): None,
    labelled("tidegate_ttft_p99_over_baseline", **TIER): 0,
    labelled("tidegate_profile_samples_total", **TIER): 0,
    labelled("tidegate_policy_generation"): 1,
    labelled("tidegate_policy_reload_failures_total"): 0,
}
"""Every metric of the design's section 12, with all its labels, and its value at the start; None:
any."""
BESIDES = {
    labelled("tidegate_slo_refused_total", objective="EndToEnd", **TIER): 0,
    labelled("tidegate_vft_skew_flagged_total", cause="prefill", **TIER): 0,
    labelled("tidegate_queue_oldest_seconds", **ONE): 0,
    labelled("tidegate_shadow_other_tenant_total"): 0,
    labelled("tidegate_shadow_refused_total", outcome="throttled"): 0,
    labelled("tidegate_limit_state_failures_total"): 0,
}


@pytest.mark.parametrize("plugin", [False, True])
async def test_every_series_is_there_from_the_start(
    start_sidecar: StartSidecar, plugin: bool
) -> None:
    with socket_folder() as folder:
        sidecar = await start_sidecar(
            policy=policy(), check_other=False, engine_plugin=folder if plugin else None
        )
        samples = await metrics(sidecar)
    expected = DESIGN | BESIDES
    assert expected.keys() - samples.keys() == set()
    known = {name: value for name, value in expected.items() if value is not None}
    assert {name: samples[name] for name in known} == known


async def test_what_was_done_is_counted_in_both(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    engine.metrics = (
        'vllm:num_requests_running{model_name="test-model"} 0\n'
        'vllm:cache_config_info{num_gpu_blocks="101",block_size="16"} 1\n'
    )

    async def slowly(connection: Connection) -> None:
        request = engine.requests[-1]
        await asyncio.sleep(0.02)
        await answer_well(request)(connection)

    engine.script = slowly
    sidecar = await start_sidecar(policy=policy(), check_other=False)
    await until(lambda: sidecar.runtime.dispatcher.in_flight.places.in_force)
    body = {"model": MODEL, "prompt": [1] * 120, "max_tokens": 20}
    for status in (200, 200, 200, 429):
        async with sidecar.request("/v1/completions", body) as answer:
            await answer.read()
            assert answer.status == status
    samples = await metrics(sidecar)
    objectives = {"first": "TimeToFirstToken", "end": "EndToEnd"}
    counted = {
        "limited": samples[labelled("tidegate_rate_limited_total", limit="rpm")],
        "cut": samples[labelled("tidegate_prompt_limited_total", action="Truncate", **TIER)],
        "nominal": samples[labelled("tidegate_kv_blocks", kv_pool="all", state="nominal")],
    }
    for name, objective in objectives.items():
        for kind in ("requests", "good", "refused"):
            key = labelled(f"tidegate_slo_{kind}_total", objective=objective, **TIER)
            counted[f"{name} {kind}"] = samples[key]
    assert counted == {
        "limited": 1,
        "cut": 3,
        "nominal": 80,
        "first requests": 3,  # one that its own limit refused says nothing of the promise
        "first good": 3,
        "first refused": 0,
        "end requests": 3,
        "end good": 0,
        "end refused": 0,
    }
    engine_ms = samples[labelled("tidegate_engine_time_ms_total", tenant=ALICE, **TIER)]
    assert engine_ms > 0
    async with sidecar.client.get(sidecar.admin_url + "/status") as response:
        status_now = decode(SidecarStatus, await response.json(), "status")
    (tier,) = status_now.tiers
    assert tier.engine_time_ms_total == pytest.approx(engine_ms, rel=0.01)
    assert [(slo.metric, slo.good_total) for slo in tier.slo] == [
        (SloMetric.TIME_TO_FIRST_TOKEN, 3),
        (SloMetric.END_TO_END, 0),
    ]
    assert tier.prompts_truncated_total == 3
    (alice,) = status_now.tenants
    assert [(use.name, use.requests_used) for use in alice.limits] == [("rpm", 3)]
    assert [(pool.name, pool.nominal_blocks) for pool in status_now.kv_pools] == [("all", 80)]


async def test_shadow_refuses_nobody_and_says_whom_it_would_have(
    start_sidecar: StartSidecar,
) -> None:
    sidecar = await start_sidecar(policy=policy(scheduling_mode="Shadow"))
    body = {"model": MODEL, "prompt": [1] * 120, "max_tokens": 20}
    for _ in range(5):
        async with sidecar.request("/v1/completions", body) as answer:
            await answer.read()
            assert answer.status == 200
    samples = await metrics(sidecar)
    assert samples[labelled("tidegate_shadow_refused_total", outcome="rate_limited")] == 2
    assert samples[labelled("tidegate_shadow_dispatches_total")] == 5
    assert samples[labelled("tidegate_prompt_limited_total", action="Truncate", **TIER)] == 0
