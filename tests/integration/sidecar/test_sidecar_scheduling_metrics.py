"""What the scheduling core did, in /metrics and /status: there at zero, then counted once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.fake_engine import until
from support.faulty_engine import MODEL, FaultyEngine, answer_well
from support.faulty_upstream import Connection
from support.sidecar import ALICE, BOB, SidecarUnderTest, policy_document

from tidegate.scheduling.contracts import SidecarStatus, SloMetric, decode

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
SERIES = [
    labelled("tidegate_throttled_total", **TIER),
    labelled("tidegate_rate_limited_total", limit="rpm"),
    *(
        labelled("tidegate_prompt_limited_total", action=action, **TIER)
        for action in ("Reject", "Truncate", "BestEffort")
    ),
    *(
        labelled(f"tidegate_slo_{kind}_total", objective=metric.value, **TIER)
        for kind in ("requests", "good", "refused")
        for metric in (SloMetric.TIME_TO_FIRST_TOKEN, SloMetric.END_TO_END)
    ),
    labelled("tidegate_vft_skew_ratio_bucket", le="+Inf", **TIER),
    labelled("tidegate_vft_skew_flagged_total", cause="prefill", **TIER),
    *(labelled("tidegate_engine_time_ms_total", tenant=name, **TIER) for name in (ALICE, BOB)),
    labelled("tidegate_max_service_gap", **TIER),
    *(labelled("tidegate_queue_oldest_seconds", tenant=name, **TIER) for name in (ALICE, BOB)),
    labelled("tidegate_preemptions_total", cause="admission"),
    labelled("tidegate_recomputed_tokens_total"),
    labelled("tidegate_kv_blocks", kv_pool="all", state="held"),
    labelled("tidegate_shadow_other_tenant_total"),
    labelled("tidegate_shadow_refused_total", outcome="throttled"),
    labelled("tidegate_limit_state_failures_total"),
]


async def test_every_series_is_there_from_the_start(start_sidecar: StartSidecar) -> None:
    sidecar = await start_sidecar(policy=policy())
    samples = await metrics(sidecar)
    assert {name: samples.get(name, "missing") for name in SERIES} == dict.fromkeys(SERIES, 0)


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
